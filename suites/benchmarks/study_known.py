"""Real studies whose answer is known: rows that do nothing, and a row that is slower by a known share.

    python -m suites.benchmarks.study_known nothing --studies 20 --rows 10 --busy-every 2
    python -m suites.benchmarks.study_known slower --studies 20 --percent 5 --busy-every 2

Each study trains the demo, or what --overrides says. With --busy-every N, two other processes disturb every Nth study:
each computes for up to 20 s, then rests for up to 40 s, and so on. The table says which verdicts each study gave, and
how long it took.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from lightning.pytorch import Callback

from imagenet_opt.study.steps.compare import MEASURES

_BUSY = """
import random, time
while True:
    end = time.monotonic() + random.uniform(0, 20)
    while time.monotonic() < end:
        sum(range(10**5))
    time.sleep(random.uniform(0, 40))
"""
_TARGET = "suites.benchmarks.study_known.Slower"


class Slower(Callback):
    """Makes each training step longer by `percent` of a usual step, by waiting after it.

    A usual step takes the lower quartile of the last ones: many others are longer, since the process was stopped in
    them, or other programs used the CPUs.
    """

    def __init__(self, percent: float) -> None:
        self.percent, self._ended = percent, None
        self._steps = deque[float](maxlen=99)

    def on_train_batch_end(self, *_: Any) -> None:
        if self._ended is not None:
            self._steps.append(time.perf_counter() - self._ended)
        if len(self._steps) > 1:
            time.sleep(self.percent / 100 * np.percentile(self._steps, 25))
        self._ended = time.perf_counter()


def study_of(kind: str, num_rows: int, percent: float) -> dict[str, object]:
    """The study's file. Steps that do nothing have another log interval each, like the start a long one, so that all
    log equally seldom."""
    if kind == "slower":
        slower = f"+callbacks.slower={{_target_: {_TARGET}, percent: {percent}}}"
        steps = [{"name": f"{percent:g} % slower", "overrides": [slower]}]
    else:
        steps = [
            {"name": f"nothing {i}", "overrides": [f"trainer.log_every_n_steps={1000 + i}"]} for i in range(1, num_rows)
        ]
    return {
        "title": "Known effects",
        "kind": "steps",
        "order": "alone",
        "start": ["trainer.log_every_n_steps=1000"],
        "steps": steps,
    }


@contextmanager
def busy(on: bool) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(2 * on)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def verdicts(file: Path) -> dict[str, Counter[str]]:
    """Number of rows by measure and verdict."""
    rows = [row for row in json.loads(file.read_text())["tables"][0]["data"]["rows"] if row.get("ratios")]
    return {name: Counter(row["ratios"][measure]["verdict"] for row in rows) for measure, name in MEASURES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["nothing", "slower"])
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--percent", type=float, default=5.0)
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--seconds", default="3")
    parser.add_argument("--busy-every", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/study_known"))
    parser.add_argument("--overrides", nargs="*", default=["data=demo"])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / f"{options.kind}.yaml"
    file.write_text(yaml.safe_dump(study_of(options.kind, options.rows, options.percent)))
    print(
        "| study | machine | minutes | " + " | ".join(MEASURES.values()) + " |\n|---|---|---" + "|---" * len(MEASURES)
    )
    for number in range(options.studies):
        is_busy = bool(options.busy_every) and number % options.busy_every == options.busy_every - 1
        folder = options.folder / f"{options.kind}_{number}"
        command = [sys.executable, "-m", "imagenet_opt.cli.main", "study", f"study={file}", "--parity", "0"]
        command += [
            f"allow_targets=[{_TARGET}]",
            "--budget",
            options.budget,
            "--seconds",
            options.seconds,
            "--folder",
            str(folder),
        ]
        began = time.monotonic()
        with busy(is_busy):
            subprocess.run([*command, *options.overrides], check=True, stdout=subprocess.DEVNULL)
        minutes = (time.monotonic() - began) / 60
        shown = [
            ", ".join(f"{num} {verdict}" for verdict, num in sorted(counts.items()))
            for counts in verdicts(folder / "study.json").values()
        ]
        machine = "busy" if is_busy else "quiet"
        print(f"| {number + 1} | {machine} | {minutes:.1f} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
