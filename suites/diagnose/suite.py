"""`diagnose` on loops with a known cause: `python -m suites.diagnose.suite SAMPLE OUT`, about two minutes a loop.

Each loop is diagnosed in a process of its own; then the loop is run as it is and after its remedy, in turns. Each loop
writes one JSON file to OUT; existing files are kept. --busy N runs N busy processes beside all. The table at the end
has the cause, the predicted gain and the real one.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from imagenet_opt.diagnosis.loop import diagnose
from imagenet_opt.measure.stats.verdict import paired_ratios
from suites.diagnose.loops import LOOPS, Loop

_ROUNDS, _SECONDS = 3, 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sample", type=Path, help="a folder with a folder of JPEGs for each class")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="NAME,... of loops")
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--busy", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with busy(options.busy):
        for name, loop in LOOPS.items():
            file = options.out / _file(name)
            if not file.exists() and (not options.only or name in options.only.split(",")):
                began = time.monotonic()
                forked(loop, options.sample.resolve(), file, options.seconds)
                print(f"{name}: {row(name, file)} ({time.monotonic() - began:.0f} s)", flush=True)
    print(table(options.out))


@contextmanager
def busy(num: int) -> Iterator[None]:
    """So many processes that compute."""
    processes = [multiprocessing.get_context("spawn").Process(target=_compute, daemon=True) for _ in range(num)]
    with ExitStack() as ending:
        for process in processes:
            process.start()
            ending.callback(process.kill)
        yield


def _compute() -> None:
    parent = os.getppid()
    for number in itertools.count():
        if number % 10_000_000 == 0 and os.getppid() != parent:
            return


def forked(loop: Loop, sample: Path, file: Path, seconds: float) -> None:
    child = os.fork()
    if child == 0:
        try:
            if loop.cpus:
                os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[: loop.cpus]))
            with busy(loop.neighbours):
                examine(loop, sample, file, seconds)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.waitpid(child, 0)


def examine(loop: Loop, sample: Path, file: Path, seconds: float) -> None:
    loader, step = loop.make(sample, False)
    diagnosis = diagnose(loader, step, seconds=seconds)
    real = real_gain(loop, sample, diagnosis.settings) if loop.right else None
    file.write_text(json.dumps(json.loads(diagnosis.as_json()) | {"real": real, "text": str(diagnosis)}, indent=1))


def real_gain(loop: Loop, sample: Path, settings: Any) -> tuple[float, float, float]:
    """Samples per second after the remedy / as it is, with its interval. settings: the remedy that was named; None for
    the remedy of the loop's author."""
    rates: dict[str, list[float]] = {"as it is": [], "after": []}
    made = {name: loop.make(sample, name == "after" and settings is None) for name in rates}
    if settings is not None:
        made["after"] = (_with(made["after"][0], settings), made["after"][1])
    for _ in range(_ROUNDS):
        for name, (loader, step) in made.items():
            rates[name].append(rate(loader, step))
    ratio = paired_ratios(rates, [("after", "as it is")])[0]
    return ratio.ratio, ratio.low, ratio.high


def _with(loader: Any, settings: dict[str, Any]) -> Any:
    names = ("num_workers", "persistent_workers", "prefetch_factor", "collate_fn")
    options = {name: getattr(loader, name) for name in names} | settings
    samples: dict[str, Any] = {"batch_size": loader.batch_size}
    if not isinstance(loader.dataset, IterableDataset):
        samples = {"batch_sampler": loader.batch_sampler}
    return DataLoader(loader.dataset, **samples, **options)


def rate(loader: Any, step: Any) -> float:
    """Samples per second of whole epochs, or of a part of the first one; without the batches that are ready at once."""
    ahead = getattr(loader, "num_workers", 0) * (getattr(loader, "prefetch_factor", 0) or 0) + 1
    short = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset) and len(loader) < 20
    began, num, seen = time.perf_counter(), 0, 0
    while True:
        for batch in loader:
            step(batch)
            seen += 1
            if not short and seen == ahead:
                began, num = time.perf_counter(), 0
            else:
                num += _num_samples(batch)
            if not short and time.perf_counter() - began > _SECONDS and seen >= 2 * ahead:
                return num / (time.perf_counter() - began)
        if short and time.perf_counter() - began > _SECONDS:
            return num / (time.perf_counter() - began)


def _num_samples(batch: Any) -> int:
    if isinstance(batch, dict):
        batch = list(batch.values())
    return len(batch[0] if isinstance(batch, list | tuple) else batch)


def _file(name: str) -> str:
    return re.sub(r"\W+", "_", name) + ".json"


def row(name: str, file: Path) -> str:
    if not file.exists():
        return "failed"
    plain, loop = json.loads(file.read_text()), LOOPS[name]
    right = loop.right or ("training", "none")
    low, high = plain["gain"]
    real = "" if plain["real"] is None else f"{plain['real'][0]:.2f} ({plain['real'][1]:.2f} to {plain['real'][2]:.2f})"
    inside = "" if plain["real"] is None else ("yes" if low <= plain["real"][0] <= high else "no")
    verdict = "right" if plain["cause"] in right else "WRONG"
    return f"{' or '.join(right)} | {plain['cause']} | {verdict} | {low:.2f} to {high:.2f} | {real} | {inside}"


def table(out: Path) -> str:
    lines = ["| loop | expected | found | | gain predicted | gain measured | inside |", "|---|---|---|---|---|---|---|"]
    for name in LOOPS:
        if (file := out / _file(name)).exists():
            lines.append(f"| {name} | {row(name, file)} |")
    rows = lines[2:]
    right, inside = (sum(f"| {word} |" in line for line in rows) for word in ("right", "yes"))
    return "\n".join([*lines, "", f"{right} of {len(rows)} right, {inside} gains inside"])


if __name__ == "__main__":
    main()
