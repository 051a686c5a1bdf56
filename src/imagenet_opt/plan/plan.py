"""Computes and shows what a run will do and cost before it starts: its phases, learning rates, rates and hours."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import Any

import torch
from omegaconf import DictConfig

from imagenet_opt.config.build import (
    device_of,
    image_sizes,
    make,
    num_classes_of,
    num_processes,
    plain,
    share_batch,
)
from imagenet_opt.config.length import settle_length
from imagenet_opt.data.order import limited
from imagenet_opt.display.table import Column, Table
from imagenet_opt.errors import ConfigError, did_you_mean
from imagenet_opt.model.network import RECIPE, build_network
from imagenet_opt.model.optimizer import REFERENCE_BATCH
from imagenet_opt.probe.model_flops import TRAINING_FORWARDS, forward_flops

IMAGENET = (1_281_167, 50_000, 1000)
"""Training images, validation images and classes, for a plan without data."""
A10G_RATE = 811.0
"""Images/s of ResNet-50 at 224 px on one A10G, not compiled (batch 256, fp16, channels_last, DALI on NVMe): constant
over 174 epochs in train_log.csv of Sagar063/week9_ERAV4_ImageNet_ResNet-50_Model_Experiments, the only published rate.
Other networks and sizes are assumed to take time in proportion to their FLOPs."""
_RESNET50_FLOPS = 8.18e9
"""FLOPs of a forward pass of ResNet-50 at 224 px; a multiply-add counts as two."""
_FACTS: dict[str, Any] = {
    "source": None, "published_top1": None, "published_top5": None, "published": {}, "evaluation": None, "sigma": None,
    "reproduced": None, "gpus": None, "deviations": [],
}  # fmt: skip
"""Keys of `recipe`, and what an absent one means."""
_COLUMNS = (
    Column("epochs"),
    Column("image size", "{:.0f}"),
    Column("steps", "{:,.0f}"),
    Column("images/s needed", "{:,.0f}"),
    Column("time"),
    Column("limit"),
)


@dataclass(frozen=True)
class Phase:
    """Consecutive epochs with images of one size.

    first_epoch: counted from 0. steps, hours: of training, in all epochs of the phase. images_per_second_needed: rate
    at which the loaders of all machines keep all GPUs busy.
    """

    first_epoch: int
    num_epochs: int
    image_size: int
    steps: int
    images_per_second_needed: float
    hours: float


@dataclass(frozen=True)
class Plan:
    """loader_rate: images/s of the loaders of all machines; None if unknown. lr: learning rate at the first step of
    each epoch. hours: of training and validation, with all GPUs. num_gpus, num_machines: that the run uses. recipe: the
    configuration's facts about a published recipe."""

    phases: tuple[Phase, ...]
    loader_rate: float | None
    lr: tuple[float, ...]
    total_steps: int
    hours: float
    validation_hours: float
    num_gpus: int
    num_machines: int
    recipe: dict[str, Any]


def make_plan(
    config: DictConfig,
    sizes: tuple[int, int, int],
    *,
    rate: float | None = None,
    rate_of_resnet50: float = A10G_RATE,
    loader_rate: float | None = None,
) -> Plan:
    """Plan a run: its steps and hours with all its GPUs, which are assumed to scale perfectly.

    sizes: training images, validation images, classes. rate: images/s that a GPU trains at 224 px; None if only
    rate_of_resnet50 is known. loader_rate: images/s of the loaders of one machine; None if they are never the limit.

    Raises ConfigError for a run without an end, and for fewer classes in the network than in the data.
    """
    config = config.copy()
    num_train, num_val, num_classes = sizes
    steps, batch, total = _lengths(config, num_train, num_classes)
    schedule = make(config.schedule, "schedule")
    peak = float(config.optimizer.lr) * batch / REFERENCE_BATCH
    run = {"num_steps": total, "steps_per_epoch": float(steps)}
    network = {name: plain(config.model)[name] for name in RECIPE} | {"num_classes": num_classes}
    flops = partial(_flops, json.dumps(network))
    of_machine, num_gpus = num_processes(config, device_of(config))
    num_machines = num_gpus // of_machine
    flops_per_second = num_gpus * (rate_of_resnet50 * _RESNET50_FLOPS if rate is None else rate * flops(224))
    load_seconds = 0.0 if loader_rate is None else 1 / (num_machines * loader_rate)
    phases: list[Phase] = []
    for size, epochs in groupby(image_sizes(config)):
        first, num = sum(phase.num_epochs for phase in phases), len(list(epochs))
        num_steps = min(num * steps, total - first * steps)
        needed = flops_per_second / flops(size)
        hours = num_steps * batch * max(1 / needed, load_seconds) / 3600
        phases.append(Phase(first, num, size, num_steps, needed, hours))
    val_seconds = flops(config.data.val_image_size or config.data.image_size) / flops_per_second / TRAINING_FORWARDS
    image_seconds = max((1 + config.model.val_flip) * val_seconds, load_seconds)
    validation_hours = _validations(config, steps, total, num_val / batch) * num_val * image_seconds / 3600
    return Plan(
        phases=tuple(phases),
        loader_rate=None if loader_rate is None else num_machines * loader_rate,
        lr=tuple(peak * schedule(first, **run) for first in range(0, total, steps)),
        total_steps=total,
        hours=sum(phase.hours for phase in phases) + validation_hours,
        validation_hours=validation_hours,
        num_gpus=num_gpus,
        num_machines=num_machines,
        recipe=_facts(config),
    )


def _facts(config: DictConfig) -> dict[str, Any]:
    """All facts about the recipe; {} without a recipe. Raises ConfigError for an unknown one."""
    if config.recipe is None:
        return {}
    for key in (typed := dict(plain(config.recipe))).keys() - _FACTS.keys():
        hint = did_you_mean(key, _FACTS, f"expected {', '.join(_FACTS)}")
        raise ConfigError(f"recipe.{key}: there is no such key; {hint}")
    return _FACTS | typed


@cache
def _flops(network: str, image_size: int) -> int:
    """Of a forward pass. network: the arguments of build_network as JSON; most recipes of a ranking share them."""
    with torch.device("meta"):
        net = build_network(**json.loads(network))
    return forward_flops(net.eval(), image_size)


def _lengths(config: DictConfig, num_train: int, num_classes: int) -> tuple[int, int, int]:
    """Steps of an epoch, images of a step, and steps of the run. Raises ConfigError as make_plan does."""
    num_classes_of(config.model.num_classes, num_classes)
    key = "data.batch_size" if config.data.get("global_batch_size") is None else "data.global_batch_size"
    share_batch(config, 1)
    batch = config.data.batch_size
    if not isinstance(batch, int):
        raise ConfigError(f"data.batch_size={batch} gives no plan; set a number of images")
    if key == "data.batch_size":
        batch *= num_processes(config, device_of(config))[1]
    images = int(config.data.samples_per_epoch or num_train)
    limit, max_steps = config.trainer.limit_train_batches, int(config.trainer.max_steps)
    if (steps := settle_length(config, images // batch)) < 1:
        raise ConfigError(
            f"{batch} images in a step ({key}) and trainer.limit_train_batches={limit} leave no step of the {images} "
            "training images; "
            f"{f'lower {key}' if batch > images else 'raise trainer.limit_train_batches'}"
        )
    if (num_epochs := int(config.trainer.max_epochs or 0)) < 1:
        raise ConfigError(
            f"trainer.max_epochs={config.trainer.max_epochs} gives no plan; set a number, or trainer.max_steps"
        )
    total = steps * num_epochs
    return steps, batch, min(total, max_steps) if max_steps > 0 else total


def _validations(config: DictConfig, steps: int, total: int, batches: float) -> float:
    """Validations of the run, each by its share of the validation images; the last weights are always validated.
    batches: in all validation images."""
    trainer = config.trainer
    interval, every = trainer.get("val_check_interval") or 1.0, trainer.check_val_every_n_epoch
    if every is None:
        num, is_last = total // interval, total % interval == 0
    else:
        gap = interval if isinstance(interval, int) else max(1, int(steps * interval))
        (epochs, inside), validated = divmod(total, steps), steps // gap
        num = epochs // every * validated + ((epochs + 1) % every == 0) * (inside // gap)
        is_last = (inside or steps) % gap == 0 and (epochs + bool(inside)) % every == 0
    num += not is_last
    return num * limited(batches, trainer.limit_val_batches) / batches


def table(plan: Plan, *, is_of_a10g: bool, price: float | None = None) -> Table:
    """The phases of the plan, and sentences about the run. is_of_a10g: whether the GPU's rate is A10G_RATE. price: of
    the run, in dollars."""
    rows = []
    for phase in plan.phases:
        first, last = phase.first_epoch + 1, phase.first_epoch + phase.num_epochs
        epochs = str(first) if first == last else f"{first} to {last}"
        limit = "loader" if _waits_for_loader(plan, phase) else "GPU"
        numbers = (float(phase.image_size), float(phase.steps), phase.images_per_second_needed)
        rows.append((epochs, *numbers, _time(phase.hours), limit))
    finding = (
        f"{plan.total_steps:,} steps, {_time(plan.hours)} on {gpus(plan)}, of which {_time(plan.validation_hours)} for "
        f"validation{'' if price is None else f': ${price:,.2f}'}."
    )
    notes = (_learning_rate(plan), *assumptions(plan, is_of_a10g=is_of_a10g), *_published(plan.recipe))
    return Table("The run", _COLUMNS, tuple(rows), notes, finding=finding)


def gpus(plan: Plan) -> str:
    return "one GPU" if plan.num_gpus == 1 else f"{plan.num_gpus} GPUs"


def _waits_for_loader(plan: Plan, phase: Phase) -> bool:
    return plan.loader_rate is not None and plan.loader_rate < phase.images_per_second_needed


def _learning_rate(plan: Plan) -> str:
    top = max(range(len(plan.lr)), key=plan.lr.__getitem__)
    epochs = sorted({0, top, len(plan.lr) - 1})
    return f"Learning rate: {', '.join(f'{plan.lr[epoch]:.3g} in epoch {epoch + 1}' for epoch in epochs)}."


def assumptions(plan: Plan, *, is_of_a10g: bool) -> Iterator[str]:
    """Sentences about the rates that the hours follow from."""
    if plan.num_gpus > 1:
        yield "The GPUs are assumed to scale perfectly; imagenet-opt study study=scaling measures how they do."
    if is_of_a10g:
        yield (
            f"The GPU's rate is the only one published for an A10G: {A10G_RATE:.0f} images/s of ResNet-50 at 224 px, "
            "not compiled; others in proportion to FLOPs. --rate sets that of your GPU."
        )
    if plan.loader_rate is None:
        yield "The loader is assumed to keep up; imagenet-opt doctor measures its rate, and --loader-rate sets it."
    if any(_waits_for_loader(plan, phase) for phase in plan.phases):
        yield (
            "Where the loader is the limit: add CPUs, or pack smaller images (imagenet-opt pack for=224; for=176 for "
            "FFCV's ResNet-18). imagenet-opt doctor measures what limits it."
        )


def evaluated_by(recipe: Mapping[str, Any]) -> str:
    """The command whose top-1 is compared with the published one."""
    return f"imagenet-opt evaluate eval={recipe['evaluation']}" if recipe["evaluation"] else "imagenet-opt evaluate"


def _published(recipe: Mapping[str, Any]) -> Iterator[str]:
    if not recipe:
        return
    if recipe["published_top1"] is None and not recipe["published"]:
        yield "Published top-1: none."
    elif recipe["published_top1"] is None:
        yield f"Published top-1: none for these epochs, only for {', '.join(map(str, recipe['published']))}."
    else:
        noise = "not known" if recipe["sigma"] is None else f"{recipe['sigma']} %"
        yield (
            f"Published top-1 of the unchanged recipe: {recipe['published_top1']} % ({evaluated_by(recipe)}), "
            f"seed noise {noise}."
        )
    yield f"Reproduced here: {recipe['reproduced'] or 'no'}. GPUs of the source: {recipe['gpus'] or 'not known'}."
    yield f"Source: {recipe['source'] or 'not given'}"
    yield from (f"Deviation {number}: {deviation}" for number, deviation in enumerate(recipe["deviations"], 1))


def _time(hours: float) -> str:
    if hours >= 0.1 or hours == 0:
        return f"{hours:.1f} hours"
    return f"{hours * 60:.2g} minutes" if hours >= 1 / 60 else f"{hours * 3600:.2g} seconds"
