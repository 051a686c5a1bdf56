"""The data of a run, its length, and its batch size: data.batch_size=auto finds the largest that fits, once."""

import logging
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, open_dict

from imagenet_opt.config.build import (
    build_trainer,
    check_config,
    device_of,
    largest_size,
    make,
    num_classes_of,
    num_processes,
    share_batch,
)
from imagenet_opt.config.length import settle_length
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.data.loader import train_order
from imagenet_opt.data.order import GLOBAL_BATCH
from imagenet_opt.errors import ConfigError
from imagenet_opt.model.optimizer import REFERENCE_BATCH
from imagenet_opt.probe.memory import MOST, SPARE, MemoryTrials, most_images, num_train
from imagenet_opt.probe.throwaway_run import only
from imagenet_opt.run.checkpoint import files as checkpoints

log = logging.getLogger(__name__)

AUTO = "auto"


def build_data(config: DictConfig, checkpoint: Path | None) -> ImageData:
    """Build the data of a run that begins with `checkpoint`; None for a new run. Set model.num_classes, set
    data.batch_size to the number of images per process and trainer.max_epochs to the epochs of the run.

    Raises BatchTooLarge before anything else is built; with auto also ConfigError if the search is impossible or the
    processes cannot share the batch, OutOfMemory if no batch fits.
    """
    num = num_processes(config, device_of(config))[1]
    if config.data.get("global_batch_size") is not None:
        share_batch(config, _world_size(config))
    is_auto = config.data.batch_size == AUTO
    with open_dict(config):
        config.data.batch_size = 1 if is_auto else config.data.batch_size
        check_config(config)
        data: ImageData = make(config.data, "data")
        config.model.num_classes = num_classes_of(config.model.num_classes, data.num_classes)
    if is_auto:
        _resolve_batch_size(config, data, checkpoint=checkpoint, world_size=_world_size(config))
    settle_length(config, train_order(len(data.train), data.loading, world_size=num).num_batches)
    return data


def _world_size(config: DictConfig) -> int:
    return int(build_trainer(only(config, callbacks=())).world_size)


def _resolve_batch_size(config: DictConfig, data: ImageData, *, checkpoint: Path | None, world_size: int) -> None:
    """Set data.batch_size to the batch size of the resumed run, else to the largest that fits, and log it."""
    saved = {} if checkpoint is None else checkpoints.read(checkpoint).get(ImageData.__name__, {})
    global_batch = saved.get(GLOBAL_BATCH)
    if global_batch is None:
        _check(config, world_size)
        size, words = _search(config, data)
    elif global_batch % world_size:
        raise ConfigError(
            f"data.batch_size=auto: the run was started with {global_batch} images a step, which {world_size} "
            "processes cannot share evenly; resume with another number of processes (trainer.devices)"
        )
    else:
        size = global_batch // world_size
        words = f"{size} images, the batch size of the resumed run"
    with open_dict(config):
        config.data.batch_size = size
    data.loading = replace(data.loading, batch_size=size)
    log.info(f"data.batch_size=auto: {words}; lr {config.optimizer.lr * size * world_size / REFERENCE_BATCH:.3g}")


def _check(config: DictConfig, world_size: int) -> None:
    if world_size > 1:
        raise ConfigError(
            f"data.batch_size=auto works with one process only, and this run has {world_size}; run `imagenet-opt tune "
            "trainer.devices=1 ...` once and set data.batch_size to the batch size that tune finds"
        )
    if "rehearsal" in config.callbacks:
        raise ConfigError(
            "data.batch_size=auto needs a real device, and rehearse=... simulates the device; set data.batch_size to a "
            "number"
        )


def _search(config: DictConfig, data: ImageData) -> tuple[int, str]:
    """The largest batch size that fits, and a log message about the search."""
    num = num_train(data)
    most = most_images(num)
    log.info(f"data.batch_size=auto: searching the largest batch up to {most} images, with one process per trial")
    trials = MemoryTrials(config, before=lambda trial: log.info(f"data.batch_size=auto: trying {trial}"))
    side, spare = largest_size(config), f"{100 * SPARE:.0f} % to spare"
    size = trials.largest(start=REFERENCE_BATCH, most=most)
    if not size:
        raise trials.nothing_fits()
    if size < most:
        return size, f"{size} images fit at {side} px with {spare}"
    bound = f"auto tries at most {MOST} images" if num // 4 >= MOST else "auto stops at a quarter of an epoch"
    return size, f"{size} images fit at {side} px with more than {spare} ({bound})"
