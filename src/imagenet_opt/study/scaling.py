"""Study `scaling`: speed with more processes, if each keeps its batch size (weak scaling)."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from omegaconf import open_dict

from imagenet_opt import machine
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.config.build import wants_gpu
from imagenet_opt.config.compose import composed
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.display.table import Table
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.ahead import images_ahead
from imagenet_opt.probe.memory import named_out_of_memory
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.comparison import ComparedSetting, Comparison, run_rounds
from imagenet_opt.study.file import Request, ScalingFile
from imagenet_opt.study.turn import apart

_LEAST_STEPS = 8
_LISTED, _MOST_EPOCHS = 100_000, 10_000
"""At least so many samples for each process, so that epochs seldom end within a turn."""


@dataclass(frozen=True)
class ScalingJob:
    """seconds: of the timed stretch."""

    overrides: tuple[str, ...]
    num_processes: int
    seconds: float


def run(file: ScalingFile, request: Request) -> Table:
    """Measure these numbers of processes and 1, with which they are compared. Raises ImagenetOptError."""
    processes = sorted({1, *file.processes})
    num_gpus = torch.cuda.device_count() if wants_gpu(composed(request.overrides)) else 0
    here = [num for num in processes if not num_gpus or num <= num_gpus]
    num_threads = max(1, machine.usable_cpus() // max(here))  # the same in every turn
    environment = {} if num_gpus else {"OMP_NUM_THREADS": str(num_threads)}
    measure = partial(apart, f"{__name__}.train", folder=request.folder, timed_seconds=request.seconds, **environment)
    settings: dict[str, ComparedSetting[float]] = {
        f"processes: {num}": ComparedSetting(
            (str(num),),
            partial(measure, ScalingJob(request.overrides, num, request.seconds)),
            against=None if num == 1 else "processes: 1",
        )
        for num in here
    }
    left_out = tuple(f"{num} processes: there are {num_gpus} GPUs here." for num in processes if num not in here)
    return scaling_table(settings, run_rounds(settings, request, float), left_out, on_gpu=num_gpus > 0)


def scaling_table(
    settings: Mapping[str, ComparedSetting[float]],
    rounds: Rounds[float],
    left_out: tuple[str, ...] = (),
    *,
    on_gpu: bool,
) -> Table:
    """left_out: sentences about numbers that were not measured."""
    unit = "images/s of each process"
    comparison = Comparison("Weak scaling", ("processes",), unit, settings, rounds, ratio="efficiency")
    finding, shared = "", "Without GPUs all processes share the CPUs: this does not predict the scaling of GPUs."
    if comparison.gains:
        most, gain = list(comparison.gains.items())[-1]
        finding = f"{most}: {gain.ratio.ratio:.0%} of ideal scaling ({gain.verdict})."
    note = "Each process has a batch of data.batch_size. Efficiency: the rate of each process over that of one alone."
    return comparison.table(note, *(() if on_gpu else (shared,)), finding=finding, left_out=left_out)


def train(job: ScalingJob) -> float:
    """Images/s of each process; the first process returns them. Raises ImagenetOptError, and TurnFailed for too few
    images."""
    config = composed(job.overrides)
    with open_dict(config):
        config.logger = {}
        config.callbacks.pop("checkpoint", None)
    seed_everything(config.seed, verbose=False)
    testbed, stretch = Testbed(config, compared=True), Stretch(job.seconds)
    repeated = testbed.samples.listed(np.arange(len(testbed.samples.index)), _LISTED * job.num_processes)
    data = ImageData(repeated, testbed.data.val, replace(testbed.loading, samples_per_epoch=None))
    trainer = {"devices": job.num_processes, "strategy": "ddp" if job.num_processes > 1 else "auto"}
    with named_out_of_memory(testbed.config):
        testbed.train_until(stretch, data, testbed.config, trainer | {"max_epochs": _MOST_EPOCHS})
    if stretch.images_per_second is None:
        raise TurnFailed("too few images for a measurement; lower data.batch_size or --seconds")
    return stretch.images_per_second


class Stretch(Callback):
    """Callback that uses up prefetched batches, times the steps of about `seconds`, and ends the fit.

    The first process chooses the last step for all processes, since DDP steps wait for each other; FitTimer would
    choose a last step in each process.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.images_per_second: float | None = None
        self._warm = self._last = self._step = -1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._step += 1  # of all epochs
        if self._step == 0:  # which compiles
            ahead = -(-images_ahead(batch, trainer.train_dataloader) // len(batch))
            self._warm, self._began = trainer.strategy.broadcast(_LEAST_STEPS + ahead), self._now()
        elif self._step == self._warm:
            num_steps = math.ceil(self.seconds * self._warm / (self._now() - self._began))
            self._last = self._warm + trainer.strategy.broadcast(max(_LEAST_STEPS, num_steps))
            self._began = self._now()
        elif self._step == self._last:
            self.images_per_second = (self._last - self._warm) * len(batch) / (self._now() - self._began)
            trainer.should_stop = True

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()
