"""Computes what a run will do and cost before it starts: its phases, learning rates, rates and hours."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import groupby
from math import ceil
from types import MappingProxyType
from typing import Any

import torch
from omegaconf import DictConfig

from imagenet_opt.config.build import device_of, image_sizes, make, num_processes, plain, share_batch
from imagenet_opt.config.overrides import key_of
from imagenet_opt.config.settled_acceleration import settle_acceleration
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.storage.limit import mixed_rate
from imagenet_opt.model.network import RECIPE, build_network
from imagenet_opt.model.optimizer import REFERENCE_BATCH
from imagenet_opt.probe.memory_need import need_of
from imagenet_opt.probe.model_flops import TRAINING_FORWARDS, forward_flops

IMAGENET = (1_281_167, 50_000, 1000)
"""Training images, validation images and classes, for a plan without data."""
A10G_RATE = 900.0
"""Images/s of ResNet-50 at 224 px, compiled, on one A10G: an estimate that nobody has measured here. Other networks and
sizes are assumed to take time in proportion to their FLOPs."""
_RESNET50_FLOPS = 8.18e9
"""FLOPs of a forward pass of ResNet-50 at 224 px; a multiply-add counts as two."""

_SAME_ACCURACY = {
    *("experiment", "data", "logger", "rehearse", "run_folder", "callbacks.progress_bar"),
    *(f"data.{key}" for key in ("root", "train_folder", "val_folder", "cache_dir", "num_workers", "prefetch_factor")),
    *(f"data.{key}" for key in ("reads_in_flight", "read_timeout", "cache_gb", "copies", "region_decode")),
    *(f"trainer.{key}" for key in ("accelerator", "log_every_n_steps", "check_val_every_n_epoch")),
}
"""Keys that change where a run reads, computes or writes, and not what it learns."""
_NO_RECIPE = ("checkpoint.", "hydra.", "logger.")


@dataclass(frozen=True)
class LoaderRate:
    """Images/s of the loader alone at one image size. storage: all images come from the storage. cached: all images
    come from the local cache of a URL; None without a cache."""

    storage: float
    cached: float | None = None

    def at(self, cached_share: float) -> float:
        """Images/s when `cached_share` of the images comes from the local cache and the rest from the storage."""
        return self.storage if self.cached is None else mixed_rate(cached_share, self.cached, self.storage)

    def packed(self, speedup: float) -> "LoaderRate":
        """The rate when decoding is `speedup` times as fast. The rate of a storage with a cache before it stays."""
        if self.cached is None:
            return LoaderRate(self.storage * speedup)
        return LoaderRate(self.storage, self.cached * speedup)


@dataclass(frozen=True)
class Phase:
    """Consecutive epochs with images of one size and one rate of the loader.

    first_epoch: counted from 0. steps: in all epochs of the phase. images_per_second_needed: rate at which the
    loader keeps the GPU busy. images_per_second_loaded: rate of the loader; None if unknown. hours: training, in all
    epochs of the phase. epoch_hours: training, in one whole epoch.
    """

    first_epoch: int
    num_epochs: int
    image_size: int
    steps: int
    images_per_second_needed: float
    images_per_second_loaded: float | None
    hours: float
    epoch_hours: float

    @property
    def waits_for_loader(self) -> bool:
        loaded = self.images_per_second_loaded
        return loaded is not None and loaded < self.images_per_second_needed


@dataclass(frozen=True)
class Plan:
    """lr: learning rate at the first step of each epoch. images_per_epoch: of training. validations: of all validation
    images, in the whole run. gpu_hours: training and validation on one GPU. memory_gib: of the tensors of a training
    step; None if unknown. num_gpus: that the run uses. compiles: whether the run would be compiled on a GPU."""

    phases: tuple[Phase, ...]
    lr: tuple[float, ...]
    total_steps: int
    images_per_epoch: int
    validations: float
    gpu_hours: float
    validation_hours: float
    memory_gib: float | None
    num_gpus: int
    compiles: bool
    recipe: dict[str, Any]

    def plain(self, changed: Sequence[str] = ()) -> dict[str, Any]:
        """The plan as a dict for JSON, with the recipe's published accuracy at the top. changed: keys of the recipe
        that the command line changes; the accuracy that the recipe expects does not hold then."""
        published = {key: self.recipe.get(key) for key in ("published_top1", "reproduced")}
        expected = None if changed else self.recipe.get("expected_top1")
        return asdict(self) | published | {"expected_top1": expected, "changed": list(changed)}


def changed_keys(overrides: Iterable[str], config: DictConfig) -> tuple[str, ...]:
    """The keys of the command line that can change a recipe's accuracy. Not trainer.max_epochs, if an accuracy is
    published for this number of epochs (recipe.published)."""
    published = (config.recipe or {}).get("published", {})
    same = _SAME_ACCURACY | ({"trainer.max_epochs"} if config.trainer.max_epochs in published else set())
    keys = map(key_of, overrides)
    return tuple(dict.fromkeys(key for key in keys if key not in same and not key.startswith(_NO_RECIPE)))


def limits(plan: Plan, loader_rates: Mapping[int, LoaderRate] = MappingProxyType({})) -> list[str]:
    """What limits each phase: "GPU", "storage" (the loader would keep up if all images came from the local cache), or
    "loader". loader_rates: as for `make_plan`."""
    found = []
    for phase in plan.phases:
        rate, needed = loader_rates.get(phase.image_size), phase.images_per_second_needed
        keeps_up = rate is not None and rate.cached is not None and rate.cached >= needed
        found.append("GPU" if not phase.waits_for_loader else "storage" if keeps_up else "loader")
    return found


def make_plan(
    config: DictConfig,
    sizes: tuple[int, int, int],
    *,
    rate: float | None = None,
    loader_rates: Mapping[int, LoaderRate] = MappingProxyType({}),
    cached_shares: tuple[float, float] = (0.0, 0.0),
) -> Plan:
    """Plan a run: its steps with all its processes, and its hours on one GPU.

    sizes: training images, validation images, classes. rate: images/s that the GPU trains at 224 px; None for the
    estimate for an A10G. loader_rates: what the loader delivers, by image size; the loader is never the limit for a
    size without a rate, and validation takes the rate of the nearest size. cached_shares: of the training images, from
    0 to 1, that come from the local cache of a URL, in the first epoch and in each later epoch.

    Raises ConfigError for a run without an end, and for fewer classes in the network than in the data.
    """
    num_train, num_val, num_classes = sizes
    settle_acceleration(config, num_train, torch.device("cuda"))
    steps, batch, total = _lengths(config, num_train, num_classes)
    schedule = make(config.schedule, "schedule")
    peak = float(config.optimizer.lr) * batch / REFERENCE_BATCH
    run = {"num_steps": total, "steps_per_epoch": float(steps)}
    seconds_of = _image_seconds(config, num_classes, rate)
    num_epochs = ceil(total / steps)
    rates = [
        (size, loader_rates[size].at(cached_shares[min(epoch, 1)]) if size in loader_rates else None)
        for epoch, size in enumerate(image_sizes(config)[:num_epochs])
    ]
    phases = tuple(_phases(rates, steps, batch, total, seconds_of))
    validations = _validations(config, steps, total, num_val / batch)
    val_size = config.data.val_image_size or config.data.image_size
    image_seconds = (1 + config.model.val_flip) * seconds_of(val_size) / TRAINING_FORWARDS
    if loader_rates:
        nearest = min(loader_rates, key=lambda size: abs(size - val_size))
        image_seconds = max(image_seconds, 1 / loader_rates[nearest].at(cached_shares[1]))
    val_seconds = validations * num_val * image_seconds
    num_gpus = num_processes(config, device_of(config))[1]
    memory = need_of(config, num_classes, ceil(batch / num_gpus), config.model.micro_batch_size)
    return Plan(
        phases=phases,
        lr=tuple(peak * schedule(first, **run) for first in range(0, total, steps)),
        total_steps=total,
        images_per_epoch=steps * batch,
        validations=validations,
        gpu_hours=sum(phase.hours for phase in phases) + val_seconds / 3600,
        validation_hours=val_seconds / 3600,
        memory_gib=None if memory is None else memory.num_bytes / 2**30,
        num_gpus=num_gpus,
        compiles=bool(config.callbacks.get("acceleration", {}).get("compile", False)),
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
    rates: Sequence[tuple[int, float | None]], steps: int, batch: int, total: int, seconds_of: Callable[[int], float]
) -> Iterator[Phase]:
    """rates: image size and rate of the loader of each epoch."""
    first = 0
    for (size, loaded), epochs in groupby(rates):
        num, seconds = len(list(epochs)), seconds_of(size)
        num_steps = min(num * steps, total - first * steps)
        hours_of_step = batch * max(seconds, 0.0 if loaded is None else 1 / loaded) / 3600
        yield Phase(first, num, size, num_steps, 1 / seconds, loaded, num_steps * hours_of_step, steps * hours_of_step)
        first += num
