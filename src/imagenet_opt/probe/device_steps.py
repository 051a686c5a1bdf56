"""Steps of the real trainer on one batch of random images that stays on the device; runs in a process of its own."""

import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import psutil
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_opt import machine
from imagenet_opt.config.build import build_model, build_trainer
from imagenet_opt.data.batch import Batch, Making
from imagenet_opt.data.keys import BatchKey
from imagenet_opt.data.loader import image_dtype
from imagenet_opt.errors import OutOfMemory
from imagenet_opt.measure.stats.rate import NUM_WINDOWS
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.probe.fit_timer import compile_seconds
from imagenet_opt.probe.memory import NoHalving, named_out_of_memory
from imagenet_opt.probe.throwaway_run import only, run_folder

STEPS = 3
"""That show whether a batch fits: the optimizer's state is there from the second on, and the third reuses memory."""
_WARM_STEPS = {"cuda": 4, "cpu": 2}
"""Compiled networks record their CUDA graph in the second or third step; on a CPU a step may take half a minute."""
_NO_END = 1_000_000
_ALONE = ("acceleration", "mixing")
"""Callbacks that belong to the device's own work."""


def rate(job: dict[str, Any]) -> dict[str, Any]:
    """Images per second of the configuration job["config"], in windows, for about job["seconds"].

    job["folder"]: for what the trainer writes. With the seconds that it took to compile, None where nothing is.
    Raises OutOfMemory.
    """
    clock = WindowClock(job["seconds"])
    trainer = _train(job, clock, num_steps=_NO_END)
    return {"windows": clock.windows, "compile_seconds": compile_seconds(trainer)}


def fits(job: dict[str, Any]) -> dict[str, Any]:
    """`peak_gib` of three steps; None where they do not leave the share job["spare"] of the free memory free.

    The memory is limited to the rest, so that nobody else's is taken: of a GPU for torch, of a CPU for the process.
    """
    peak: float | None = None
    on_gpu = torch.cuda.is_available() and job["on_gpu"]
    _limit_memory(torch.device("cuda", *(job["devices"] or [0])) if on_gpu else torch.device("cpu"), job["spare"])
    with suppress(OutOfMemory, MemoryError):
        peak = peak_gib(_train(job, num_steps=STEPS).strategy.root_device)
    return {"peak_gib": peak}


class WindowClock(Callback):
    """windows: images per second in stretches of the fit, each of which ends when the device has done its work.

    Ends the fit after `seconds`, and two windows at least.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.windows: list[float] = []
        self._num_images = 0
        self._began = self._since = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        num_timed = batch_idx + 1 - _WARM_STEPS.get(trainer.strategy.root_device.type, 2)
        if num_timed > 0:
            self._num_images += len(batch)
        if num_timed == 0 or (num_timed > 0 and time.perf_counter() - self._since >= self.seconds / NUM_WINDOWS):
            self._close(trainer)

    def _close(self, trainer: Trainer) -> None:
        """A window, and the next one begins."""
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._num_images:
            self.windows.append(self._num_images / (now - self._since))
        else:
            self._began = now
        self._since, self._num_images = now, 0
        trainer.should_stop = len(self.windows) >= 2 and now - self._began >= self.seconds


class Repeated:
    """A loader of one batch, `num` times."""

    def __init__(self, batch: Batch, num: int) -> None:
        self.batch, self.num = batch, num

    def __len__(self) -> int:
        return self.num

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.num):
            yield copy(self.batch)


def _train(job: dict[str, Any], *callbacks: Callback, num_steps: int) -> Trainer:
    asked: Any = OmegaConf.create(job["config"])
    alone = only(asked, callbacks=_ALONE)
    with run_folder(alone, within=Path(job["folder"])) as config, named_out_of_memory(config):
        with open_dict(config):
            config.trainer.devices = job["devices"] or 1
        trainer = build_trainer(config)
        trainer.callbacks.extend([NoHalving(), *callbacks])  # type: ignore[attr-defined]
        model = build_model(config, global_batch=config.data.batch_size)
        batch = random_batch(config, trainer)
        trainer.fit(model, train_dataloaders=Repeated(batch, num_steps), weights_only=True)
    return trainer


def random_batch(config: DictConfig, trainer: Trainer) -> Batch:
    """data.batch_size images of noise, data.image_size wide, as training has them on its device."""
    device, num, side = trainer.strategy.root_device, config.data.batch_size, config.data.image_size
    dtype = image_dtype(str(trainer.precision), device)
    return Batch(
        images=torch.randn(num, 3, side, side, device=device, dtype=dtype),
        labels=torch.randint(config.model.num_classes, (num,), device=device),
        indices=torch.arange(num, device=device),
        valid=torch.ones(num, dtype=torch.bool, device=device),
        key=BatchKey(0, 0, side),
        making=Making(0.0, 0.0, 0, 1, 0.0, ()),
        ticket=None,
    )


def _limit_memory(device: torch.device, spare: float) -> None:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        torch.cuda.set_per_process_memory_fraction(free * (1 - spare) / total, device)
        return
    room = int(machine.available_memory() * (1 - spare))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + room, hard))
