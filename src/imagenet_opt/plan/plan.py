"""Computes what a run will do and cost before it starts: its phases, learning rates, rates and hours."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from math import ceil
from types import MappingProxyType
from typing import Any

import torch
from omegaconf import DictConfig

from imagenet_opt.config.build import device_of, image_sizes, make, num_processes, plain, set_size, share_batch
from imagenet_opt.config.overrides import key_of
from imagenet_opt.errors import ConfigError
from imagenet_opt.model.network import RECIPE, build_network
from imagenet_opt.model.optimizer import REFERENCE_BATCH
from imagenet_opt.probe.model_flops import TRAINING_FORWARDS, forward_flops
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span

IMAGENET = (1_281_167, 50_000, 1000)
"""Training images, validation images and classes, for a plan without data."""
A10G_RATE = 900.0
"""Images/s of ResNet-50 at 224 px, compiled, on one A10G: an estimate that nobody has measured here. Other networks and
sizes are assumed to take time in proportion to their FLOPs."""
_RESNET50_FLOPS = 8.18e9
"""FLOPs of a forward pass of ResNet-50 at 224 px; a multiply-add counts as two."""
SECONDS = 5.0
"""Duration of a measurement of the loader, for each image size."""
_LONGEST_SECONDS = 60.0
_BATCH = 256
"""Largest batch of a measurement; a few batches of each worker must fit into SECONDS."""

_SAME_ACCURACY = {
    *("experiment", "data", "logger", "rehearse", "run_folder", "callbacks.progress_bar"),
    *(f"data.{key}" for key in ("root", "train_folder", "val_folder", "cache_dir", "num_workers", "prefetch_factor")),
    *(f"data.{key}" for key in ("reads_in_flight", "read_timeout", "cache_gb", "copies", "region_decode")),
    *(f"trainer.{key}" for key in ("accelerator", "log_every_n_steps", "check_val_every_n_epoch")),
}
"""Keys that change where a run reads, computes or writes, and not what it learns."""
_NO_RECIPE = ("callbacks.checkpoint.", "hydra.", "logger.")


@dataclass(frozen=True)
class Phase:
    """Consecutive epochs with images of one size.

    first_epoch: counted from 0. steps, hours: of training, in all epochs of the phase. images_per_second_needed: rate
    at which the loader keeps the GPU busy. images_per_second_loaded: rate of the loader; None if unknown.
    """

    first_epoch: int
    num_epochs: int
    image_size: int
    steps: int
    images_per_second_needed: float
    images_per_second_loaded: float | None
    hours: float

    @property
    def waits_for_loader(self) -> bool:
        loaded = self.images_per_second_loaded
        return loaded is not None and loaded < self.images_per_second_needed


@dataclass(frozen=True)
class Plan:
    """lr: learning rate at the first step of each epoch. gpu_hours: training and validation on one GPU. num_gpus: that
    the run uses. recipe: the configuration's facts about a published recipe."""

    phases: tuple[Phase, ...]
    lr: tuple[float, ...]
    total_steps: int
    gpu_hours: float
    validation_hours: float
    num_gpus: int
    recipe: dict[str, Any]


def changed_keys(overrides: Iterable[str], config: DictConfig) -> tuple[str, ...]:
    """The keys of the command line that can change a recipe's accuracy. Not trainer.max_epochs, if an accuracy is
    published for this number of epochs (recipe.published)."""
    published = (config.recipe or {}).get("published", {})
    same = _SAME_ACCURACY | ({"trainer.max_epochs"} if config.trainer.max_epochs in published else set())
    keys = map(key_of, overrides)
    return tuple(dict.fromkeys(key for key in keys if key not in same and not key.startswith(_NO_RECIPE)))


def loader_rates(config: DictConfig, announce: Callable[[str], None]) -> dict[int, float]:
    """Images/s of the loader alone at each image size of the run, with files that are not in memory.

    announce: called with each measurement's description. Raises ConfigError if the data is too small to measure.
    """
    rates = {}
    for size in sorted(set(image_sizes(config))):
        announce(f"the loader at {size} px")
        at_size = config.copy()
        set_size(at_size, size)
        testbed = Testbed(at_size)
        index, batch_size = testbed.samples.listed(testbed.samples.cold_rows()), testbed.loading.batch_size
        span = Span(SECONDS, longest=_LONGEST_SECONDS)
        rates[size] = testbed.load(index, span, cold=True, batch_size=min(_BATCH, batch_size)).images_per_second
    return rates


def make_plan(
    config: DictConfig,
    sizes: tuple[int, int, int],
    *,
    rate: float | None = None,
    loaded: Mapping[int, float] = MappingProxyType({}),
) -> Plan:
    """Plan a run: its steps with all its processes, and its hours on one GPU.

    sizes: training images, validation images, classes. rate: images/s that the GPU trains at 224 px; None for the
    estimate for an A10G. loaded: images/s of the loader by image size; the loader is never the limit for a size without
    a rate, and validation takes the rate of the nearest size.

    Raises ConfigError for a run without an end, and for fewer classes in the network than in the data.
    """
    config = config.copy()
    num_train, num_val, num_classes = sizes
    steps, batch, total = _lengths(config, num_train, num_classes)
    schedule = make(config.schedule, "schedule")
    peak = float(config.optimizer.lr) * batch / REFERENCE_BATCH
    run = {"num_steps": total, "steps_per_epoch": float(steps)}
    seconds_of = _image_seconds(config, num_classes, rate)
    epochs = image_sizes(config)[: ceil(total / steps)]
    phases = tuple(_phases(epochs, steps, batch, total, seconds_of, loaded))
    val_size = config.data.val_image_size or config.data.image_size
    image_seconds = (1 + config.model.val_flip) * seconds_of(val_size) / TRAINING_FORWARDS
    if loaded:
        image_seconds = max(image_seconds, 1 / loaded[min(loaded, key=lambda size: abs(size - val_size))])
    validation_hours = _validations(config, steps, total, num_val / batch) * num_val * image_seconds / 3600
    return Plan(
        phases=phases,
        lr=tuple(peak * schedule(first, **run) for first in range(0, total, steps)),
        total_steps=total,
        gpu_hours=sum(phase.hours for phase in phases) + validation_hours,
        validation_hours=validation_hours,
        num_gpus=num_processes(config, device_of(config))[1],
        recipe=dict(plain(config.recipe)) if config.recipe is not None else {},
    )


def _lengths(config: DictConfig, num_train: int, num_classes: int) -> tuple[int, int, int]:
    """Steps of an epoch, images of a step, and steps of the run. Raises ConfigError as make_plan does."""
    outputs = config.model.num_classes
    if outputs is not None and outputs < num_classes:
        raise ConfigError(
            f"the data has {num_classes} classes, the network only {outputs} (model.num_classes); use "
            "model.num_classes=null to follow the data"
        )
    key = "data.batch_size" if config.data.get("global_batch_size") is None else "data.global_batch_size"
    share_batch(config, 1)
    batch, num_epochs = config.data.batch_size, int(config.trainer.max_epochs or 0)
    if not isinstance(batch, int):
        raise ConfigError(f"data.batch_size={batch} gives no plan; set a number of images")
    if key == "data.batch_size":
        batch *= num_processes(config, device_of(config))[1]
    if num_epochs < 1:
        raise ConfigError(f"trainer.max_epochs={config.trainer.max_epochs} gives no plan; set a number of epochs")
    images = int(config.data.samples_per_epoch or num_train)
    if images < batch:
        raise ConfigError(f"{key}={batch} is larger than the {images} training images; set {key} to at most {images}")
    steps, max_steps = int(_limited(images // batch, config.trainer.limit_train_batches)), int(config.trainer.max_steps)
    if steps < 1:
        raise ConfigError(
            f"trainer.limit_train_batches={config.trainer.limit_train_batches} leaves no batch of an epoch; raise it"
        )
    total = steps * num_epochs
    return steps, batch, min(total, max_steps) if max_steps > 0 else total


def _limited(batches: float, limit: float | None) -> float:
    """Batches that Lightning's limit leaves: a number (int), a share (float), or all (None)."""
    return min(batches, limit) if isinstance(limit, int) else batches * (1.0 if limit is None else limit)


def _validations(config: DictConfig, steps: int, total: int, batches: float) -> float:
    """Validations of the run, each by its share of the validation images. batches: in all validation images."""
    trainer = config.trainer
    interval, every = trainer.get("val_check_interval") or 1.0, trainer.check_val_every_n_epoch
    if every is None:
        num = total // interval
    else:
        gap = interval if isinstance(interval, int) else max(1, int(steps * interval))
        num = total // steps // every * (steps // gap)
    return num * _limited(batches, trainer.limit_val_batches) / batches


def _image_seconds(config: DictConfig, num_classes: int, rate: float | None) -> Callable[[int], float]:
    """A function from an image size to the GPU's seconds for a training image. rate: as for make_plan."""
    network = {name: config.model[name] for name in RECIPE} | {"num_classes": num_classes}
    with torch.device("meta"):
        net = build_network(**network)
    flops_per_second = A10G_RATE * _RESNET50_FLOPS if rate is None else rate * forward_flops(net, 224)
    return cache(lambda size: forward_flops(net, size) / flops_per_second)


def _phases(
    sizes: Iterable[int],
    steps: int,
    batch: int,
    total: int,
    seconds_of: Callable[[int], float],
    loaded: Mapping[int, float],
) -> Iterator[Phase]:
    """sizes: image size of each epoch. loaded: as for make_plan."""
    first = 0
    for size, epochs in groupby(sizes):
        num, seconds, rate = len(list(epochs)), seconds_of(size), loaded.get(size)
        num_steps = min(num * steps, total - first * steps)
        hours = num_steps * batch * max(seconds, 1 / rate if rate else 0.0) / 3600
        yield Phase(first, num, size, num_steps, 1 / seconds, rate, hours)
        first += num
