"""imagenet_opt.loader: the loader for a loop of your own."""

import inspect
import operator
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import distributed

from imagenet_opt import machine
from imagenet_opt.data.index.index_cache import cache_folder
from imagenet_opt.data.index.layout import root_of
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.split import Split, subset, with_classes_of
from imagenet_opt.data.loader import RankInfo, eval_loader, train_loader
from imagenet_opt.data.options import LoaderOptions, option_docs
from imagenet_opt.data.order import ROWS
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.data.transforms.resize import DTYPES
from imagenet_opt.errors import ClassMismatch, ConfigError, DatasetNotFound, did_you_mean, first_line, own_names

_TRAIN, _VAL = ("train",), ("val", "test", "eval")
"""Beginnings of the names of splits whose use is clear."""
_SUBSET = "indices= chooses images and weights= their chances; processes share the images without a sampler"
_INSTEAD = {
    "transform": (
        _TRANSFORM := "augment=, random_erasing= and random_shift= change training images; or change "
        "batch.images yourself"
    ),
    "transforms": _TRANSFORM,
    "normalize": "mean= and std=, or dtype=torch.uint8 for pixels",
    "size": "image_size=",
    "target_transform": "targets= gives each image a label of your own",
    "collate_fn": "a batch has images and labels already; change them on the device",
    "sampler": _SUBSET,
    "batch_sampler": _SUBSET,
    "drop_last": "training leaves out the images that fill no whole batch, validation shows every image",
    "pin_memory": "batches arrive on the device, from pinned memory; see copies=",
    "persistent_workers": "the workers stay until close()",
    "worker_init_fn": "seed= decides all random numbers",
    "generator": "seed= decides all random numbers",
    "timeout": "see read_timeout=",
}


@own_names()
def loader(
    root: str | Path,
    *,
    split: str = "train",
    training: bool | None = None,
    indices: "ArrayLike | None" = None,
    weights: "ArrayLike | None" = None,
    targets: "ArrayLike | None" = None,
    pad: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    rank: int | None = None,
    world_size: int | None = None,
    cache_dir: str | None = None,
    **options: Any,
) -> DevicePrefetcher:
    """Batches on the device for a plain PyTorch loop, from `root`/`split`/<class>/*.JPEG or from packed shards.

        with imagenet_opt.loader("/data/imagenet", batch_size=256) as train:
            for epoch in range(90):
                for images, labels in train: ...

    Each iteration to the end is an epoch with its own order, crops and flips; one that ends early is begun again.
    `set_epoch(epoch)` chooses another epoch. `state_dict()` after a step, and `load_state_dict(state)` on a new loader
    with any number of workers, resume with the next batch, in the epoch `epoch`. `classes`, `class_to_idx`,
    `num_samples`, `labels` and `path(index)` tell what the loader has. `close()`, or the end of `with`, ends the
    workers. docs/own_project.md says what else a batch holds, and how Lightning and Fabric use the loader.

    root: a folder, or a URL such as s3://bucket/imagenet. training: random crops in random order, where images that
    fill no whole batch are left out; False: centred crops of every image, once and in order, with the class numbers of
    `root`/train if there is one; None: as the name of the split says. indices: numbers of the images to use, or a bool
    for each image of the split. weights: a number above 0 for each image of the split: an epoch draws as many images as
    there are, with replacement, each with a chance in proportion. targets: a label for each image of the split, instead
    of its class: numbers or vectors of numbers; labels are then int64 or float32. pad: fill the last batch of a
    validation, which `valid` marks, so that all batches have one shape. device: a GPU if there is one. dtype: of the
    images: float32, float16, bfloat16, or uint8 for pixels that are not normalised. rank, world_size: this process and
    the number of processes, which share the images; found by torch.distributed or from RANK and WORLD_SIZE. cache_dir:
    of the index; the user's cache folder by default.

    Raises DataError for a folder without images, ConfigError for an option out of range.
    """
    _check_names(options)
    made_for = rank_info(device, dtype, rank, world_size)
    is_training = _is_training(split, training)
    settings = LoaderOptions(**options)
    index = open_index(root_of(str(root)), split, cache_folder(cache_dir), cache_gb=settings.cache_gb)
    if split != "train" and not is_training and targets is None:
        index = numbered_as_in_train(index, root_of(str(root)), cache_folder(cache_dir))
    if (not is_training and weights is not None) or (is_training and pad):
        name, use = ("pad", "validation") if is_training else ("weights", "training")
        raise ConfigError(f"{name}= is for {use}, and training={is_training}; leave {name}= out")
    chances = None if weights is None else _weights(weights, len(index))
    if targets is not None:
        index = replace(index, labels=_targets(targets, len(index)))
    rows = None if indices is None else _rows(indices, len(index))
    if rows is not None:
        index = subset(index, rows)
        chances = None if chances is None else chances[rows]
    made = (
        train_loader(index, settings, made_for, weights=chances)
        if is_training
        else eval_loader(index, settings, made_for, pad=pad)
    )
    if world_size is None:
        made.sampler.on_first_key = partial(_check_processes, made_for.world_size, made.sampler.on_first_key)
    if rows is not None:
        made.fingerprint = {**made.fingerprint, ROWS: zlib.crc32(rows.tobytes())}
    return made


def _check_names(options: dict[str, Any]) -> None:
    """Raise ConfigError for an option that does not exist, with what to use instead."""
    known = [option.name for option in fields(LoaderOptions)]
    for name in options:
        if name not in known:
            otherwise = "help(imagenet_opt.loader) lists the options"
            hint = _INSTEAD.get(name) or did_you_mean(name, [*known, *inspect.signature(loader).parameters], otherwise)
            raise ConfigError(f"imagenet_opt.loader has no option {name}: {hint}")
    if isinstance(options.get("shuffle"), bool):
        raise ConfigError(
            f"shuffle={options['shuffle']}: training images are always shuffled ('global', or 'block' for neighbours "
            "together), and training=False gives centred crops in order; leave shuffle out"
        )


def _is_training(split: str, training: bool | None) -> bool:
    name = Path(split).name.lower()
    if training is None and not name.startswith((*_TRAIN, *_VAL)):
        raise ConfigError(
            f"split={split}: is it for training? Set training=True (random crops in random order) or training=False "
            "(centred crops of every image)"
        )
    return name.startswith(_TRAIN) if training is None else training


def rank_info(
    device: torch.device | str | None, dtype: torch.dtype, rank: int | None, world_size: int | None
) -> RankInfo:
    if dtype not in DTYPES:
        raise ConfigError(f"dtype={dtype}: expected {', '.join(map(str, DTYPES))}")
    found: tuple[int | None, int | None] = 0, 1
    if _are_joined():
        found = distributed.get_rank(), distributed.get_world_size()
    elif os.environ.keys() & {"RANK", "WORLD_SIZE"}:
        found = _number("RANK"), _number("WORLD_SIZE")
    wanted = found[0] if rank is None else rank, found[1] if world_size is None else world_size
    place, number = map(_whole, wanted)
    if place is None or number is None or not 0 <= place < number:
        raise ConfigError(
            f"rank={wanted[0]!r}, world_size={wanted[1]!r}: expected whole numbers, 0 <= rank < world_size; set both, "
            "or leave both out under torchrun (which sets RANK and WORLD_SIZE; without it, unset them) or after "
            "torch.distributed.init_process_group"
        )
    where = _device(device)
    gpus = torch.cuda.device_count() if where.type == "cuda" else number
    local = _number("LOCAL_WORLD_SIZE") or min(number, gpus)
    sharing = machine.sharing_cpus(local_processes=local, world_size=number)
    return RankInfo(
        device=where, dtype=dtype, rank=place, world_size=number, local_processes=local, sharing_cpus=sharing
    )


def _are_joined() -> bool:
    """Whether torch.distributed knows the processes."""
    return distributed.is_available() and distributed.is_initialized()


def _check_processes(world_size: int, begin: Callable[[], None]) -> None:
    """Raise ConfigError if torch.distributed has started other processes than the loader found; else begin an epoch."""
    if _are_joined() and (now := distributed.get_world_size()) != world_size:
        raise ConfigError(
            f"the loader was made for world_size={world_size}, and torch.distributed has {now} processes, which would "
            "all get the same images; make the loader after torch.distributed.init_process_group, or set rank= and "
            "world_size="
        )
    begin()


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None


def _whole(value: Any) -> int | None:
    """The number, also of numpy and torch; None if it is no whole number."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def _device(wanted: torch.device | str | None) -> torch.device:
    """The device; without a number, the process's current GPU, or that of LOCAL_RANK if no other was chosen."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        device = torch.device(("cuda" if num_gpus else "cpu") if wanted is None else wanted)
    except (RuntimeError, TypeError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= num_gpus):
        usable = ", ".join(["cpu", *(f"cuda:{number}" for number in range(num_gpus))])
        raise ConfigError(f"device={wanted}: torch can use {usable} here; leave device out for the best of them")
    if device.type == "cuda" and device.index is None:
        local = _number("LOCAL_RANK") or 0
        return torch.device("cuda", torch.cuda.current_device() or (local if local < num_gpus else 0))
    return device


def numbered_as_in_train(index: Split, root: Path | str | None, cache: Path) -> Split:
    """A split whose classes have the numbers of those in train/, if `root` has such a split: without it, labels would
    be others than in training if a class has no images here."""
    try:
        return with_classes_of(open_index(root, "train", cache), index)
    except DatasetNotFound:
        return index
    except ClassMismatch as error:
        raise ClassMismatch(f"{error}. Or give each image a label of your own: targets=") from error


def _array(name: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # of numpy, and of torch for some tensors
        raise ConfigError(f"{name}= must be numbers in a list or an array: {first_line(error)}") from error


def _rows(indices: ArrayLike, num: int) -> NDArray[np.int64]:
    rows = _array("indices", indices)
    if rows.dtype == bool and rows.shape == (num,):
        rows = np.flatnonzero(rows)
    if rows.dtype.kind not in "iu" or rows.ndim != 1 or not len(rows) or rows.min() < 0 or rows.max() >= num:
        raise ConfigError(f"indices= must be whole numbers from 0 to {num - 1}, or a bool for each of {num} images")
    return rows.astype(np.int64)


def _weights(weights: ArrayLike, num: int) -> NDArray[np.float64]:
    chances = _array("weights", weights)
    if chances.shape != (num,) or chances.dtype.kind not in "biuf" or not (np.isfinite(chances) & (chances > 0)).all():
        raise ConfigError(f"weights= must be a number above 0 for each of {num} images; indices= leaves images out")
    return chances.astype(np.float64)


def _targets(targets: ArrayLike, num: int) -> NDArray[Any]:
    labels = _array("targets", targets)
    if not labels.shape or len(labels) != num or labels.dtype.kind not in "biuf" or not np.isfinite(labels).all():
        raise ConfigError(f"targets= must be a finite number, or a vector of such numbers, for each of {num} images")
    return labels.astype(np.int64 if labels.dtype.kind in "iu" else np.float32)


def _help() -> str:
    """A line for each option: its default and the first sentence of its docstring."""
    docs = {name: re.split(r"(?<=\.)\s", text, maxsplit=1)[0] for name, text in option_docs().items()}
    lines = [f"    {option.name}={option.default!r}: {docs[option.name]}\n" for option in fields(LoaderOptions)]
    return "Options, which docs/reference/keys.md explains as data.batch_size and so on:\n" + "".join(lines)


loader.__doc__ = f"{inspect.cleandoc(loader.__doc__ or '')}\n\n{_help()}"
loader.__module__ = "imagenet_opt"
