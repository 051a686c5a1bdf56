"""data.batch_size=auto: the largest batch that fits, looked for once, before the run begins."""

import logging
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, open_dict

from imagenet_opt.config.build import largest_size
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.errors import ConfigError
from imagenet_opt.model.optimizer import REFERENCE_BATCH
from imagenet_opt.probe.memory import MOST, SPARE, MemoryTrials, most_images, num_train
from imagenet_opt.probe.memory_need import gpu_bytes, need_of, usable
from imagenet_opt.run.checkpoint import files as checkpoints

log = logging.getLogger(__name__)

AUTO = "auto"
_STRIDES = 16
"""The first step away from a computed batch is this part of it: our choice, about what cuDNN and torch's allocator take
beside the tensors."""


def resolve_batch_size(config: DictConfig, data: ImageData, *, checkpoint: Path | None, world_size: int) -> None:
    """Set data.batch_size to a number: that of the resumed run, else the largest that fits; and tell it.

    Raises ConfigError where it cannot be looked for or shared, OutOfMemory where nothing fits.
    """
    begun = None if checkpoint is None else _begun_with(checkpoint)
    if begun is None:
        _check(config, world_size)
        size, words = _look(config, data)
    else:
        size = _part(begun, world_size)
        words = f"{size} images, as the run was begun with"
    with open_dict(config):
        config.data.batch_size = size
    data.loading = replace(data.loading, batch_size=size)
    log.info(f"data.batch_size=auto: {words}; lr {config.optimizer.lr * size * world_size / REFERENCE_BATCH:.3g}")


def _check(config: DictConfig, world_size: int) -> None:
    if world_size > 1:
        raise ConfigError(
            f"data.batch_size=auto looks for the batch in one process, and this run has {world_size}; "
            "run `imagenet-opt tune trainer.devices=1 ...` once and set data.batch_size to the number that it finds"
        )
    if "rehearsal" in config.callbacks:
        raise ConfigError("data.batch_size=auto needs the device itself, and rehearse=... simulates one; set a number")


def _begun_with(checkpoint: Path) -> int | None:
    """Images of a step of the run that has written this, of all its processes."""
    facts = checkpoints.read(checkpoint).get(ImageData.__name__, {})
    size = facts.get("images of a global batch")
    return None if size is None else int(size)


def _part(num_images: int, world_size: int) -> int:
    """Of each process."""
    if num_images % world_size:
        raise ConfigError(
            f"data.batch_size=auto: the run was begun with {num_images} images a step, which {world_size} processes "
            "cannot share evenly; resume with another number of processes (trainer.devices)"
        )
    return num_images // world_size


def _look(config: DictConfig, data: ImageData) -> tuple[int, str]:
    """The largest batch, and the sentence about it."""
    num = num_train(data)
    most = most_images(num)
    log.info(f"data.batch_size=auto: looking for the largest batch up to {most} images, one process a trial")
    trials = MemoryTrials(config, before=lambda what: log.info(f"data.batch_size=auto: trying {what}"))
    side, spare = largest_size(config), f"{100 * SPARE:.0f} % to spare"
    guess = _guess(config, most)
    if guess is None:
        size = trials.largest(start=REFERENCE_BATCH, most=most)
    else:
        log.info(f"data.batch_size=auto: about {guess} images should fit by what the tensors of a step take")
        size = trials.largest(start=guess, most=most, stride=guess // _STRIDES)
    if not size:
        raise trials.nothing_fits()
    if size < most:
        return size, f"{size} images fit at {side} px with {spare}"
    bound = f"auto takes no more than {MOST}" if num // 4 >= MOST else "auto takes no more than 1/4 of an epoch"
    return size, f"{size} images fit at {side} px with more than {spare} ({bound})"


def _guess(config: DictConfig, most: int) -> int | None:
    """The largest batch up to `most` whose tensors fit into the GPU's memory; None where that is not known."""
    if (card := gpu_bytes(config)) is None:
        return None
    need = need_of(config, config.model.num_classes, REFERENCE_BATCH)
    return None if need is None else min(most, max(1, need.most_images(usable(card))))
