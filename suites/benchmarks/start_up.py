"""Start-up costs: imports, a run to its first step, the index of a tree of 100,000 files, and its memory in workers.

python -m suites.benchmarks.start_up [--files 100000] [--repeats 5]
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from lightning.pytorch import Callback

from imagenet_opt.data.index.folder_index import FileIndex, open_split
from imagenet_opt.machine import usable_cpus, versions

IN_ORDER = (
    "hydra",
    "wandb.sdk.launch",
    "torch",
    "torchvision",
    "torchmetrics",
    "lightning.pytorch",
    "timm",
    "imagenet_opt.training.fit",
)
"""What train.py imports with W&B, in its order; each is timed after those before it."""
_AGE = "age of the process:"
LIBRARIES = "torch, torchvision, lightning.pytorch, timm, hydra"
PACKAGE = "imagenet_opt.config.build, imagenet_opt.training.summary, imagenet_opt.config.overrides"


class FirstStep(Callback):
    """Prints the age of the process at the start of the fit and at the end of the first step."""

    def on_fit_start(self, *_: Any) -> None:
        print(_AGE, time.time() - psutil.Process().create_time(), flush=True)

    on_train_batch_end = on_fit_start


def first_step_seconds() -> list[float]:
    """Age of a process of train.py with the demo when its fit starts, and after its first step."""
    target = "suites.benchmarks.start_up.FirstStep"
    words = [
        "data=demo",
        "trainer.max_steps=1",
        "trainer.limit_val_batches=0",
        "logger=csv",
        f"allow_targets=[{target}]",
        f"+callbacks.first_step={{_target_: {target}}}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "train.py", *words, f"run_folder={folder}/run"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith(_AGE)]


def import_seconds(modules: str, before: str) -> float:
    """Seconds to import `modules` in a new interpreter that has imported `before`."""
    code = f"import {before}, time; t = time.perf_counter(); import {modules}; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def import_shares() -> list[float]:
    """Seconds of each of IN_ORDER in one new interpreter."""
    code = (
        f"import gc, importlib, time\ngc.disable()\nfor name in {IN_ORDER}:\n"
        " t = time.perf_counter(); importlib.import_module(name); print(time.perf_counter() - t)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def make_tree(root: Path, num_files: int) -> None:
    for label in range(1000):
        folder = root / "train" / f"n{label:08d}"
        folder.mkdir(parents=True)
        for i in range(num_files // 1000):
            (folder / f"n{label:08d}_{i}.JPEG").touch()
        os.utime(folder, (0, 0))  # a folder that has just changed is not cached
    os.utime(root / "train", (0, 0))


def own_mib() -> float:
    return psutil.Process().memory_full_info().uss / 2**20


def grown_mib(index: FileIndex) -> list[float]:
    """MiB that a forked worker has of its own after each of three passes over all names and labels."""

    def walk(send: Connection) -> None:
        for _ in range(3):
            for i in range(len(index)):
                index.path(i), int(index.labels[i])
            send.send(own_mib())

    receive, send = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.get_context("fork").Process(target=walk, args=(send,))
    worker.start()
    passes = [receive.recv() for _ in range(3)]
    worker.join()
    return passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(f"{usable_cpus()} CPUs, {versions()}")
    print(f"import of the package after its libraries: {seconds_of(args.repeats, PACKAGE, LIBRARIES):.3f} s")
    print(f"import of the package alone after torch:   {seconds_of(args.repeats, 'imagenet_opt', 'torch'):.3f} s")
    shares = [import_shares() for _ in range(args.repeats)]
    for name, seconds in zip(IN_ORDER, zip(*shares, strict=True), strict=True):
        print(f"import {name}, after those above: {median(seconds):.2f} s")
    print(f"all imports: {median(map(sum, shares)):.2f} s")
    ages = list(zip(*(first_step_seconds() for _ in range(args.repeats)), strict=True))
    for name, seconds in zip(("the fit starts", "the first step ends"), ages, strict=True):
        print(
            f"train.py with the demo, {name} after {median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"
        )
    with tempfile.TemporaryDirectory() as folder:
        root, cache = Path(folder) / "data", Path(folder) / "cache"
        make_tree(root, args.files)
        for what in ("scanned", *["cached"] * args.repeats):
            before, began = own_mib(), time.perf_counter()
            index = open_split(root, "train", cache)
            seconds = time.perf_counter() - began
            print(f"index of {len(index)} files, {what}: {seconds:.3f} s, {own_mib() - before:.1f} MiB of its own")
        print("a worker's own memory after each pass over the index:", *(f"{mib:.1f} MiB" for mib in grown_mib(index)))


def seconds_of(repeats: int, modules: str, before: str) -> float:
    return median(import_seconds(modules, before) for _ in range(repeats))


if __name__ == "__main__":
    main()
