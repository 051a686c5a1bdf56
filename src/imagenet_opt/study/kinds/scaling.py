"""Study `scaling`: speed with more processes, if each keeps its batch size (weak scaling)."""

import math
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from omegaconf import DictConfig, open_dict
from pydantic import BaseModel, PositiveInt, field_validator

from imagenet_opt import machine
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.config.build import (
    at_one_size,
    build_model,
    build_trainer,
    device_of,
    make,
    num_classes_of,
    num_processes,
    share_batch,
    wants_gpu,
)
from imagenet_opt.config.compose import composed
from imagenet_opt.config.settled_acceleration import settle_acceleration
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table, ratio_cells
from imagenet_opt.measure.stats import physics
from imagenet_opt.measure.stats.intervals import CONFIDENCE
from imagenet_opt.measure.stats.paired_ratios import Ratio, measured_ratios
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.fit.stock import images_ahead, num_ready
from imagenet_opt.probe.isolated import call_isolated, limit
from imagenet_opt.probe.memory import NoHalving, named_out_of_memory
from imagenet_opt.probe.samples import listed
from imagenet_opt.probe.throwaway_run import removed_afterwards, run_folder
from imagenet_opt.study.kinds.ratio_table import median_cells, median_series
from imagenet_opt.study.request import Request, checked_options
from imagenet_opt.study.turns import run_rounds

_LEAST_STEPS = 8
_LISTED = 100_000
"""At least so many samples for each process, so that epochs seldom end within a turn."""
_MOST_EPOCHS = 10_000


@dataclass(frozen=True)
class Job:
    """seconds: of the timed stretch. on_gpu: whether each process has its own GPU; otherwise they share the CPUs."""

    overrides: tuple[str, ...]
    num_processes: int
    seconds: float
    on_gpu: bool


@dataclass(frozen=True)
class StepRate:
    """images_per_second: of all processes together."""

    images_per_second: float
    step_seconds: float


class Stretch(Callback):
    """Callback that uses up prefetched batches, times the steps of about `seconds`, and ends the fit.

    The first process chooses the last step for all processes, since DDP steps wait for each other; FitTimer would
    choose a last step in each process.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.pace: StepRate | None = None
        self.doubt: str | None = None
        self._first = self._last = self._step = -1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._step += 1  # of all epochs
        if self._step == 0:
            ahead = -(-images_ahead(batch, trainer.train_dataloader) // len(batch))
            self._warm = trainer.strategy.broadcast(min(2 + ahead, int(trainer.num_training_batches) // 3))
        if self._step == self._warm:
            self._begin(trainer)
        elif self._step == self._warm + _LEAST_STEPS and self._last < 0:
            num_steps = math.ceil(self.seconds * _LEAST_STEPS / (self._now() - self._began))
            self._last = self._step + trainer.strategy.broadcast(max(_LEAST_STEPS, num_steps))
            self._begin(trainer)
        elif self._step == self._last:
            each = (self._now() - self._began) / (self._last - self._first)
            self.doubt = physics.impossible(self._claim(batch, trainer.train_dataloader, each))
            self.pace = StepRate(len(batch) * trainer.world_size / each, each)
            trainer.should_stop = True

    def _begin(self, trainer: Trainer) -> None:
        self._ready = num_ready(trainer.train_dataloader)
        self._first, self._began = self._step, self._now()

    def _claim(self, batch: Any, loader: Any, step_seconds: float) -> physics.Claim:
        """The rate of this process, for the check of physical limits. Batches from the queue were made before the timed
        steps; batches in the workers and in the copy to the device are not in the queue."""
        num_steps, num_from_queue = self._last - self._first, self._ready - num_ready(loader)
        num_workers = getattr(getattr(loader, "loader", None), "num_workers", 0)
        return physics.Claim(
            num_images=num_steps * len(batch),
            seconds=num_steps * step_seconds,
            num_made=(num_steps - num_from_queue) * len(batch),
            slack=(2 + max(1, num_workers)) * len(batch),
        )

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def train(job: Job) -> dict[str, float]:
    """Measure a StepRate; it is returned by the first process. Raises ImagenetOptError, and TurnFailed for too few
    images."""
    config = composed(job.overrides)
    at_one_size(config)
    share_batch(config, num_processes(config, device_of(config))[1])
    seed_everything(config.seed, verbose=False)
    data = make(config.data, "data")
    with open_dict(config):
        config.model.num_classes = num_classes_of(config.model.num_classes, data)
    settle_acceleration(config, len(data.train), device_of(config))
    stretch = Stretch(job.seconds)
    with run_folder(config) as config, named_out_of_memory(config):
        trainer = _trainer(config, job)
        trainer.callbacks.extend([stretch, NoHalving()])  # type: ignore[attr-defined]
        model = build_model(config, global_batch=data.loading.batch_size * trainer.world_size)
        repeated = listed(data.train, np.arange(len(data.train)), _LISTED * job.num_processes)
        repeated_data = ImageData(repeated, data.val, replace(data.loading, samples_per_epoch=None))
        trainer.fit(model, datamodule=repeated_data, weights_only=True)
    for process in getattr(trainer.strategy.launcher, "procs", ()):
        process.wait(60)  # until it has removed its run folder
    if stretch.doubt is not None:
        raise TurnFailed(f"not measured: {stretch.doubt}; raise --seconds")
    if stretch.pace is None:
        raise TurnFailed("too few images for a measurement; lower data.batch_size or --seconds")
    return asdict(stretch.pace)


def _trainer(config: DictConfig, job: Job) -> Trainer:
    with open_dict(config):
        config.logger = {}
        config.callbacks.pop("checkpoint", None)
        config.trainer.max_epochs = _MOST_EPOCHS
        config.trainer.accelerator = "gpu" if job.on_gpu else "cpu"
        config.trainer.devices = job.num_processes
        config.trainer.strategy = "ddp" if job.num_processes > 1 else "auto"
    return build_trainer(config)


COLUMNS = (
    Column("processes", "{:.0f}"),
    Column("images/s", "{:,.0f}"),
    Column("interval of images/s"),
    Column("efficiency", "{:.1%}"),
    Column("interval of efficiency"),
    Column("each process is"),
    Column("ms a step", "{:,.1f}"),
    Column("remark"),
)


class Scaling(BaseModel, extra="forbid"):
    """Keys of conf/study/scaling.yaml."""

    processes: list[PositiveInt]

    @field_validator("processes")
    @classmethod
    def _has_baseline(cls, numbers: list[int]) -> list[int]:
        if 1 not in numbers or len(numbers) != len(set(numbers)):
            raise ValueError(f"{numbers} must hold 1, with which the other numbers are compared, and each number once")
        return sorted(numbers)


def run(request: Request) -> list[Table]:
    """Measure all numbers of processes in turns and return the table. Raises ImagenetOptError."""
    processes = checked_options(Scaling, request).processes
    num_gpus = torch.cuda.device_count() if wants_gpu(composed(request.overrides)) else 0
    absent = {n: f"left out: {num_gpus} GPUs here" for n in processes if 0 < num_gpus < n}
    num_cpus = None if num_gpus else machine.usable_cpus()
    environment = {} if num_cpus is None else {"OMP_NUM_THREADS": str(max(1, num_cpus // max(processes)))}
    turns = {
        str(n): partial(_turn, Job(request.overrides, n, request.seconds, on_gpu=num_gpus > 0), environment)
        for n in processes
        if n not in absent
    }
    rounds = run_rounds(turns, request, StepRate, label="processes: {}")
    return [table(processes, rounds, absent, num_cpus=num_cpus)]


def _turn(job: Job, environment: dict[str, str]) -> StepRate:
    with removed_afterwards() as runs:
        train = "imagenet_opt.study.kinds.scaling.train"
        values: Any = call_isolated(train, job, limit_seconds=limit(job.seconds), environment=environment | runs)
    return StepRate(**values)


def table(processes: list[int], rounds: Rounds[StepRate], absent: dict[int, str], *, num_cpus: int | None) -> Table:
    """Build the table. num_cpus: CPUs shared by the processes; None if each has a GPU. absent: reasons for missing
    numbers."""
    steps = {n: rounds.results.get(str(n), []) for n in processes}
    remarks = {n: f"more than CPUs ({num_cpus})" for n in processes if num_cpus is not None and n > num_cpus}
    remarks |= absent | {int(name): f"failed: {reason}" for name, reason in rounds.failures.items()}
    rates = {n: [step.images_per_second for step in steps[n]] for n in processes}
    rates_of_one_process = {str(n): [rate / n for rate in rates[n]] for n in processes}
    ratios = measured_ratios(rates_of_one_process, [(str(n), "1") for n in processes if n > 1])
    rows: list[tuple[Cell, ...]] = []
    for n in processes:
        efficiency = (1.0, None, None) if n == 1 and rates[n] else ratio_cells(ratios.get(str(n)), "{:.1%}")
        step_ms = 1000 * median(step.step_seconds for step in steps[n]) if rates[n] else None
        remark = remarks.get(n, "" if rates[n] else None)
        rows.append((n, *median_cells(rates[n], "{:,.0f}"), *efficiency, step_ms, remark))
    notes = [
        "Each process has a batch of data.batch_size, so the global batch grows with the number of processes. "
        "Efficiency is the rate divided by (processes x rate of one process); its intervals hold together with "
        f"{CONFIDENCE:.0%}. The verdict compares the rate of each process with that of one process alone.",
    ]
    if num_cpus is not None:
        notes.append(
            f"Without GPUs all processes share {num_cpus} CPUs with the loaders, and each has the same number of "
            "threads in every turn; these numbers do not predict the scaling of GPUs."
        )
    return Table(
        "Weak scaling", COLUMNS, tuple(rows), tuple(notes), _plots(rates, ratios), finding=_finding(rates, ratios)
    )


def _finding(rates: dict[int, list[float]], ratios: dict[str, Ratio]) -> str:
    if not ratios:
        return ""
    most = max(map(int, ratios))
    return (
        f"{most} processes train {median(rates[most]):,.0f} images/s, {ratios[str(most)].ratio:.0%} of ideal scaling."
    )


def _plots(rates: dict[int, list[float]], ratios: dict[str, Ratio]) -> tuple[Plot, ...]:
    """Plots of the ratios; none if nothing can be compared."""
    if not ratios:
        return ()
    measured = median_series("measured", {float(n): rates[n] for n in (1, *map(int, ratios))})
    ideal = Series("ideal", measured.x, tuple(float(n) * measured.y[0] for n in measured.x))
    shares = list(ratios.values())
    efficiency = Series(
        "efficiency",
        tuple(map(float, ratios)),
        tuple(share.ratio for share in shares),
        tuple(share.low for share in shares),
        tuple(share.high for share in shares),
    )
    return (
        Plot("Images per second", "processes", "images/s", "lines", (measured, ideal)),
        Plot("Efficiency", "processes", "rate / (processes x rate of one)", "lines", (efficiency,)),
    )
