"""One turn of the scaling study: a real fit of so many processes, each with a batch of its own."""

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from omegaconf import DictConfig, open_dict

from imagenet_opt.config.build import build_model, build_trainer, make, num_classes_of
from imagenet_opt.config.compose import composed
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.measure.stats import physics
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.fit_timer import images_ahead, num_ready
from imagenet_opt.probe.memory import NoHalving, named_out_of_memory
from imagenet_opt.probe.samples import listed
from imagenet_opt.probe.testbed import at_one_size
from imagenet_opt.probe.throwaway_run import run_folder

_LEAST_STEPS = 8
_LISTED = 100_000
"""Samples of a process, at least, so that epochs seldom end within a turn."""
_MOST_EPOCHS = 10_000


@dataclass(frozen=True)
class Job:
    """seconds: of the timed stretch. on_gpu: each process has a GPU of its own; else they share the CPUs."""

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
    """Lets a fit use up what was made ahead, times as many steps as `seconds` take, and ends it.

    All processes end at the same step, which the first one chooses: steps of DDP wait for each other.
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
        """Of this process: batches that the steps took from a stock were made before. What each worker and the copy to
        the device have in hand is no such stock."""
        num_steps, taken = self._last - self._first, self._ready - num_ready(loader)
        workers: Any = getattr(loader, "loader", None)
        num_workers = 0 if workers is None else workers.num_workers
        return physics.Claim(
            num_images=num_steps * len(batch),
            seconds=num_steps * step_seconds,
            num_made=(num_steps - taken) * len(batch),
            slack=(2 + max(1, num_workers)) * len(batch),
        )

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def train(job: Job) -> dict[str, float]:
    """A StepRate, in the first of the processes. Raises ImagenetOptError, and TurnFailed for too few images."""
    config = composed(job.overrides)
    at_one_size(config)
    seed_everything(config.seed, verbose=False)
    data = make(config.data, "data")
    with open_dict(config):
        config.model.num_classes = num_classes_of(config.model.num_classes, data)
    stretch = Stretch(job.seconds)
    with run_folder(config) as config, named_out_of_memory(config):
        trainer = _trainer(config, job)
        trainer.callbacks.extend([stretch, NoHalving()])  # type: ignore[attr-defined]
        model = build_model(config, global_batch=data.loading.batch_size * trainer.world_size)
        trainer.fit(model, datamodule=_without_end(data, job.num_processes), weights_only=True)
    for other in getattr(trainer.strategy.launcher, "procs", ()):
        other.wait(60)  # for its own folder to be removed
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


def _without_end(data: ImageData, num_processes: int) -> ImageData:
    """The training samples again and again."""
    index: Any = data.train
    index = listed(index, np.arange(len(index)), _LISTED * num_processes)
    return ImageData(index, data.val, replace(data.loading, samples_per_epoch=None))
