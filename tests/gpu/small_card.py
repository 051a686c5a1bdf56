"""Trains on a card of 22 GiB, played on a larger one: `small_card.py --seconds S OUT OVERRIDE...`.

Each trial is a short run of train.py in a process of its own, with torch kept from taking more of the card. OUT gets
small_card.json (what became of each trial) and the trials' run folders; trials that ended well are not run again.
OVERRIDE: of train.py, for all trials.
"""

import argparse
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

GIB = 22.0
"""What an A10G leaves to torch."""
TRIALS: dict[str, tuple[str, ...]] = {
    "batch 384, compiled": ("data.batch_size=384",),
    "batch 384, compiled, CUDA graph": ("data.batch_size=384", "callbacks.acceleration.cuda_graph=true"),
    "batch 512, compiled": ("data.batch_size=512",),
    "batch 512, reduce-overhead": ("data.batch_size=512", "callbacks.acceleration.compile_mode=reduce-overhead"),
    "batch 384, max-autotune": ("data.batch_size=384", "callbacks.acceleration.compile_mode=max-autotune"),
}
STEPS = 60
TELLING = ("acceleration:", "out of memory", "micro-batch")
"""In lines of a run's log that say what it did about memory and compiling."""


@dataclass(frozen=True)
class Trial:
    """status: that of the process, None where it was cut short. said: telling lines of the log, or its last one."""

    name: str
    status: int | None
    seconds: float
    images_per_second: float | None
    peak_gib: float | None
    said: tuple[str, ...]


def run(name: str, folder: Path, overrides: list[str], *, seconds: float) -> Trial:
    began = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)  # of a former call
    folder.mkdir(parents=True)
    command = [sys.executable, __file__, "--play", *overrides, f"hydra.run.dir={folder / 'run'}"]
    with (folder / "output.log").open("w") as output:
        try:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, check=False)
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = None
    summary = folder / "run" / "summary.json"
    numbers = json.loads(summary.read_text()) if summary.exists() else {}
    return Trial(
        name,
        status,
        round(time.perf_counter() - began, 1),
        numbers.get("throughput/images_per_second"),
        numbers.get("memory/peak_gib"),
        telling(folder / "output.log"),
    )


def telling(log: Path) -> tuple[str, ...]:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    found = [line for line in lines if any(word in line for word in TELLING)]
    return tuple(dict.fromkeys(found)) or tuple(deque(lines, maxlen=1))


def play(overrides: list[str]) -> None:
    """train.py with these overrides, on a part of the card."""
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, GIB * 2**30 / total))
    sys.argv = ["train.py", *overrides]
    runpy.run_path("train.py", run_name="__main__")


def main(out: Path, overrides: list[str], *, seconds: float) -> None:
    """All trials within so many seconds. Exit status 1 where a trial failed or was cut short."""
    end = time.perf_counter() + seconds
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(out / "cache" / "compiled")
    short = [f"trainer.max_steps={STEPS}", "trainer.limit_val_batches=2", "experiment=aggressive"]
    file = out / "small_card.json"
    known = {one["name"]: one for one in (json.loads(file.read_text()) if file.exists() else []) if one["status"] == 0}
    trials = []
    for i, (name, own) in enumerate(TRIALS.items()):
        left = max(1.0, end - time.perf_counter())
        folder = out / "small_card" / str(i)
        trials.append(known.get(name) or asdict(run(name, folder, [*short, *overrides, *own], seconds=left)))
        file.write_text(json.dumps(trials, indent=2) + "\n")
        print(json.dumps(trials[-1]), flush=True)
    sys.exit(any(trial["status"] != 0 for trial in trials))


if __name__ == "__main__":
    if sys.argv[1] == "--play":
        play(sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--seconds", type=float, required=True, help="for all trials together")
        parser.add_argument("out", type=Path)
        parser.add_argument("overrides", nargs="*")
        given = parser.parse_args()
        main(given.out, given.overrides, seconds=given.seconds)
