"""What the trainer itself costs: train.py's trainer and a bare PyTorch loop take turns, a block of steps each.

    OMP_NUM_THREADS=1 python -m suites.benchmarks.trainer_vs_loop [--blocks 100] [--steps 10] [OVERRIDE ...]

OVERRIDES are those of train.py, such as data.root=FOLDER; without them, it is the demo. Both loops run in the main
thread of one process, which has a CPU of its own; everything else has the others. They have the same first weights,
batches, optimizer and schedule, each from a loader of its own, and must have trained the same weights after the first
block, which is not counted. The trainer has all callbacks and loggers of train.py, except checkpoints; mixing and
validation are off, and the precision is float32.

Prints the steps per second of each, their ratio with its 95 % interval, and what a row of metrics costs.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as train.py does

import argparse
import copy
import logging
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import psutil
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from imagenet_opt.config.compose import composed
from imagenet_opt.data.loader import RankInfo, train_loader
from imagenet_opt.machine import cpu_name, usable_cpus, versions
from imagenet_opt.measure.stats.verdict import paired_ratios
from imagenet_opt.run.loggers.run_logger import offline
from imagenet_opt.training.build_run import Run, build_run

OVERRIDES = (
    "~callbacks.checkpoint", "callbacks.mixing.mode=off", "data.num_workers=1", "model.label_smoothing=0",
    "trainer.accelerator=cpu", "trainer.limit_val_batches=0", "trainer.max_epochs=10000", "trainer.precision=32-true",
)  # fmt: skip


def bare_loop(run: Run, net: nn.Module) -> Iterator[None]:
    """Train `net` as the run trains its own; yields after each step."""
    device, trainer, data = torch.device("cpu"), run.trainer, run.data
    optimizer = run.model.optimizer(net, device=device)
    steps, steps_per_epoch = int(trainer.estimated_stepping_batches), float(trainer.num_training_batches)
    schedule = LambdaLR(optimizer, partial(run.model.schedule, num_steps=steps, steps_per_epoch=steps_per_epoch))
    loader = train_loader(data.train, data.loading, RankInfo(device=device))
    for epoch in range(int(trainer.max_epochs or 0)):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            cross_entropy(net(batch.images), batch.labels).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            yield


class Turns(Callback):
    """After each block of the trainer's steps, lets the bare loop do as many. seconds: of the blocks, by loop."""

    def __init__(self, run: Run, *, num_blocks: int, num_steps: int) -> None:
        self.num_blocks, self.num_steps = num_blocks, num_steps
        self.seconds: dict[str, list[float]] = {"trainer": [], "bare loop": []}
        self._net = copy.deepcopy(run.model.net).to(memory_format=torch.channels_last).train()
        self._bare = bare_loop(run, self._net)
        self._began: float | None = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: object) -> None:
        if trainer.global_step % self.num_steps:
            return
        ended = time.perf_counter()
        for _step in range(self.num_steps):
            next(self._bare)
        if self._began is None:
            check_equal(pl_module.net, self._net)
            separate_cpus()
        else:
            self.seconds["trainer"].append(ended - self._began)
            self.seconds["bare loop"].append(time.perf_counter() - ended)
        trainer.should_stop = len(self.seconds["trainer"]) == self.num_blocks
        self._began = time.perf_counter()


def check_equal(trained: nn.Module, bare: nn.Module) -> None:
    """Exit unless both networks have the same weights, but for the order of sums."""
    for (name, ours), theirs in zip(trained.state_dict().items(), bare.state_dict().values(), strict=True):
        if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-3):
            raise SystemExit(f"the loops do not do the same: {name} differs by {(ours - theirs).abs().max():.2g}")


def separate_cpus() -> None:
    """Give the main thread a CPU of its own, and the others to all other threads and processes of this one."""
    first, *others = sorted(os.sched_getaffinity(0))
    process, main = psutil.Process(), threading.main_thread().native_id
    for child in process.children(recursive=True):
        child.cpu_affinity(others)
    for thread in process.threads():
        os.sched_setaffinity(thread.id, {first} if thread.id == main else others)


def timed_rows(logger: Logger) -> list[float]:
    """Seconds of each row that the logger is given from now on."""
    log_metrics, seconds = logger.log_metrics, []

    def timed(*args: Any, **kwargs: Any) -> None:
        began = time.perf_counter()
        log_metrics(*args, **kwargs)
        seconds.append(time.perf_counter() - began)

    logger.log_metrics = timed  # type: ignore[method-assign]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100, help="of each loop (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="of a block (default: %(default)s)")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(f"{cpu_name()}, {usable_cpus()} CPUs, {torch.get_num_threads()} threads; {versions()}", flush=True)
    config = composed((*OVERRIDES, *options.overrides))
    with tempfile.TemporaryDirectory() as folder, offline():
        config.run_folder = config.trainer.default_root_dir = folder
        run = build_run(config)
        turns = Turns(run, num_blocks=options.blocks, num_steps=options.steps)
        run.trainer.callbacks.append(turns)  # type: ignore[attr-defined]
        rows = {type(logger).__name__: timed_rows(logger) for logger in run.trainer.loggers}
        run.trainer.fit(run.model, datamodule=run.data)
    rates = {name: [options.steps / each for each in seconds] for name, seconds in turns.seconds.items()}
    for name, values in rates.items():
        print(f"{name}: {median(values):.2f} steps/s, median of {len(values)} blocks of {options.steps} steps")
    (ratio,) = paired_ratios(rates, [("trainer", "bare loop")])
    print(f"trainer / bare loop: {ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})")
    for name, seconds in rows.items():
        milliseconds = sorted(1000 * each for each in seconds)
        print(f"a row for {name}: {median(milliseconds):.2f} ms, at most {milliseconds[-1]:.2f} ms, of {len(seconds)}")


if __name__ == "__main__":
    main()
