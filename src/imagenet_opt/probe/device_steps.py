"""Steps of the real trainer on one batch of random images that stays on the device; runs in a process of its own."""

import resource
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from lightning.pytorch import Callback, Trainer
from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_opt import machine
from imagenet_opt.config.build import build_model, build_trainer, wants_gpu
from imagenet_opt.config.trust import find
from imagenet_opt.data.batch import Batch, LoadStats
from imagenet_opt.data.batch_keys import BatchKey
from imagenet_opt.data.loader import image_dtype
from imagenet_opt.errors import OutOfMemory
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from imagenet_opt.probe.fit_timer import FitTimer
from imagenet_opt.probe.memory import NoHalving, named_out_of_memory
from imagenet_opt.probe.resident_loader import NO_END, ResidentLoader
from imagenet_opt.probe.throughput import Span, fit_ceiling
from imagenet_opt.probe.throwaway_run import only, run_folder
from imagenet_opt.run.hooks import callbacks_of

STEPS = 3
"""Steps that show whether a batch fits: the optimizer's state exists from the second on; the third reuses memory."""
_ALONE = ("acceleration", "mixing")
"""Callbacks that stay in the run, because their work is part of the device's work in training."""


def rate(job: dict[str, Any]) -> dict[str, Any]:
    """Measure the configuration job["config"] for about job["seconds"]. Returns `windows`, the images per second of
    each window, and `compile_seconds`, None without compilation. job["folder"]: for the trainer's files. job["spare"]:
    see `_limit_memory`; without it there is no limit. Raises OutOfMemory.
    """
    if "spare" in job:
        _limit_memory(job)
    span = Span(job["seconds"])
    timer = FitTimer(seconds=span.seconds, limit_seconds=span.limit, multiple=1)
    _train(job, timer)
    return {"windows": fit_ceiling(timer.timing).windows, "compile_seconds": timer.timing.compile_seconds}


def fits(job: dict[str, Any]) -> dict[str, Any]:
    """Train three steps within the limit of `_limit_memory`. Returns `peak_gib`; None if they need more."""
    _limit_memory(job)
    with suppress(OutOfMemory, MemoryError):
        return {"peak_gib": peak_gib(_train(job, num=STEPS).strategy.root_device)}
    return {"peak_gib": None}


def _train(job: dict[str, Any], *callbacks: Callback, num: int = NO_END) -> Trainer:
    alone = only(job["config"], callbacks=_ALONE)
    with run_folder(alone, within=Path(job["folder"])) as config, named_out_of_memory(config):
        with open_dict(config):
            config.trainer.devices = alone.trainer.devices
        trainer = build_trainer(config)
        callbacks_of(trainer).extend([NoHalving(), *callbacks])
        model = build_model(config, global_batch=config.data.batch_size)
        batch = random_batch(config, trainer)
        trainer.fit(model, train_dataloaders=ResidentLoader(batch, num=num), weights_only=True)
    return trainer


def random_batch(config: DictConfig, trainer: Trainer) -> Batch:
    """A batch of data.batch_size random images, data.image_size wide, in the form and on the device of training."""
    device, num, side = trainer.strategy.root_device, config.data.batch_size, config.data.image_size
    dtype = image_dtype(str(trainer.precision), device)
    return Batch(
        images=torch.randn(num, 3, side, side, device=device, dtype=dtype),
        labels=torch.randint(config.model.num_classes, (num,), device=device),
        indices=torch.arange(num, device=device),
        valid=torch.ones(num, dtype=torch.bool, device=device),
        key=BatchKey(0, 0, side),
        stats=LoadStats(0.0, 0.0, 0.0, 0, 1, 0.0, (), Counter()),
        lease=None,
    )


def _limit_memory(job: dict[str, Any]) -> None:
    """Limit this process to the free memory minus the share job["spare"], on a GPU by torch, so that no other program
    runs out of memory."""
    for name, node in job["config"].callbacks.items():  # imports that find no memory are no answer
        find(node["_target_"], f"callbacks.{name}._target_")
    if torch.cuda.is_available() and wants_gpu(job["config"]):
        devices = job["config"].trainer.devices
        device = torch.device("cuda", devices[0] if OmegaConf.is_list(devices) else 0)
        free, total = torch.cuda.mem_get_info(device)
        torch.cuda.set_per_process_memory_fraction(free * (1 - job["spare"]) / total, device)
        return
    room = int(machine.available_memory() * (1 - job["spare"]))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + room, hard))
