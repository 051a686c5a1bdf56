"""timm's `create_loader` with the loader of this package: `from imagenet_opt.timm import create_loader`."""

import inspect
import math
import os
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from timm.data import Mixup
from timm.data import loader as timms
from timm.data.readers.reader_image_folder import ReaderImageFolder
from timm.data.readers.reader_image_in_tar import ReaderImageInTar
from torch import Tensor

from imagenet_opt.data.index.index_cache import cache_folder
from imagenet_opt.data.index.layout import root_of
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.loader import eval_loader, train_loader
from imagenet_opt.data.options import LoaderOptions, checked
from imagenet_opt.data.order import EvalOrder
from imagenet_opt.data.plain_loader import numbered_as_in_train, rank_info
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.data.transforms.augment import Augmenter, ColorJitter, Policy, parse_policy
from imagenet_opt.data.transforms.crop import CropPlan, eval_crops, train_crops
from imagenet_opt.errors import ConfigError, DatasetNotFound, own_names

_SIGNATURE = inspect.signature(timms.create_loader)
_HONOURED = (
    "dataset", "input_size", "batch_size", "is_training", "no_aug", "re_prob", "re_mode", "re_count", "re_split",
    "scale", "hflip", "auto_augment", "num_aug_repeats", "interpolation", "mean", "std", "num_workers", "distributed",
    "crop_pct", "pin_memory", "fp16", "img_dtype", "device", "use_prefetcher", "use_multi_epochs_loader",
    "persistent_workers",
)  # fmt: skip
_UNREAD = ("batch_size_choices", "batch_choice_", "batch_schedule_", "num_batches")
"""Beginnings of arguments that timm reads only with input_size_choices, which is refused."""


class TimmLoader(timms.PrefetchLoader):
    """`loader` is the loader of this package, with state_dict(), load_state_dict() and close()."""

    def __init__(self, loader: DevicePrefetcher, a: SimpleNamespace) -> None:
        inner: Any = loader
        self.loader, inner.collate_fn = inner, a.collate_fn  # the properties of timm read it, and dataset
        inner.dataset = a.dataset if isinstance(a.dataset, timms.ImageDataset) else inner.loader.dataset
        order = inner.loader.dataset.order
        self.order = order if isinstance(order, EvalOrder) else None
        how = {"mode": a.re_mode, "max_count": a.re_count, "num_splits": 2 * a.re_split, "device": loader.device}
        self.random_erasing: Any = timms.RandomErasing(a.re_prob, **how) if a.is_random and a.re_prob else None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.loader:
            images, labels = batch
            if self.order is not None:  # without padding, but with an image for each process
                num = max(1, self.order.sample_ids(batch.key.epoch, batch.key.step).num_valid)
                images, labels = images[:num], labels[:num]
            if isinstance(self.loader.collate_fn, Mixup):
                images, labels = Mixup.__call__(self.loader.collate_fn, images, labels)
            yield images if self.random_erasing is None else self.random_erasing(images), labels


@own_names(
    root="dataset",
    image_size="input_size",
    crop_scale="scale",
    val_crop_ratio="crop_pct",
    augment="auto_augment",
    repeated_augmentation="num_aug_repeats",
)
def create_loader(*args: Any, **kwargs: Any) -> TimmLoader:
    """timm's function, with its arguments; docs/timm.md says what each does here. dataset: timm's ImageDataset over a
    folder or tars, or the path or URL of a split in any form that `imagenet_opt.loader` reads.

    Raises ConfigError for an argument that is not honoured.
    """
    a = _arguments(args, kwargs)
    dtype = torch.float16 if a.fp16 else a.img_dtype or torch.float32
    target = (a.device, dtype) if a.use_prefetcher else ("cpu", torch.float32)
    rank = rank_info(*target, *((None, None) if a.distributed else (0, 1)))
    options, policies = _options(a), _policies(a)
    loader = (train_loader if a.is_training else eval_loader)(
        _split_of(a.dataset, a.is_training),
        options,
        rank,
        crop_plan=_crop_plan(a, options),
        interpolation=a.interpolation if a.is_random else options.interpolation,
        augmenter=Augmenter(seed=options.seed, policies=policies, erasing=None) if policies else None,
    )
    return TimmLoader(loader, a)


create_loader.__signature__ = _SIGNATURE  # type: ignore[attr-defined]


def _arguments(args: Any, kwargs: Any) -> SimpleNamespace:
    """The arguments, also `side` in pixels, and `is_random` for augmented training. Raises ConfigError for those that
    are unknown, or not honoured with their value."""
    try:
        bound = _SIGNATURE.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(f"create_loader: {error}; help(timm.data.create_loader) has all arguments") from error
    bound.apply_defaults()
    a = SimpleNamespace(**bound.arguments)
    *channels, height, a.side = a.input_size if isinstance(a.input_size, tuple | list) else (a.input_size,) * 2
    a.is_random = a.is_training and not a.no_aug
    a.re_prob, a.hflip = (checked(name, getattr(a, name) or 0, "random_erasing") for name in ("re_prob", "hflip"))
    collates = (None, timms.fast_collate, torch.utils.data.default_collate)
    honoured = {
        "input_size": height == a.side and channels in ([], [3]),
        "train_crop_mode": a.train_crop_mode in (None, "rrc"),
        "ratio": a.ratio is None or np.allclose(a.ratio, (3 / 4, 4 / 3)),
        "crop_mode": a.crop_mode in (None, "center", "squash"),
        "color_jitter": not isinstance(a.color_jitter, tuple | list) or len(a.color_jitter) == 3,
        "collate_fn": a.collate_fn in collates or isinstance(a.collate_fn, timms.FastCollateMixup),
        "worker_seeding": isinstance(a.worker_seeding, str),
    }
    for name, value in bound.arguments.items():
        is_default = not value or value == _SIGNATURE.parameters[name].default or name.startswith(_UNREAD)
        if not honoured.get(name, is_default or name in _HONOURED):
            remedy = "leave it out, or take timm's own loader (docs/timm.md)"
            raise ConfigError(f"imagenet_opt.timm does not honour {name}={value!r}; {remedy}")
    return a


def _options(a: SimpleNamespace) -> LoaderOptions:
    return LoaderOptions(
        batch_size=a.batch_size,
        image_size=a.side,
        num_workers=a.num_workers,
        crop_scale=tuple(a.scale or (0.08, 1.0)),
        val_crop_ratio=a.crop_pct or 0.875,
        mean=tuple(a.mean),
        std=tuple(a.std),
        interpolation="bilinear" if a.is_training and a.interpolation == "random" else a.interpolation,
        repeated_augmentation=a.num_aug_repeats or 1,
        seed=0 if a.distributed else torch.initial_seed(),  # of all processes the same, as in timm
    )


def _crop_plan(a: SimpleNamespace, options: LoaderOptions) -> CropPlan:
    """As timm resizes: without augmentation both sides to those that are given, or the shorter side to a number."""
    if a.is_random:
        return partial(train_crops, seed=options.seed, scale=options.crop_scale, hflip=a.hflip)
    if a.is_training:
        return partial(eval_crops, crop_ratio=1.0, squash=not isinstance(a.input_size, int))
    resized = math.floor(a.side / options.val_crop_ratio)
    return partial(eval_crops, crop_ratio=a.side / resized, squash=a.crop_mode == "squash")


def _policies(a: SimpleNamespace) -> tuple[Policy, ...]:
    """timm jitters colours only without auto_augment."""
    if a.is_random and a.auto_augment:
        return tuple(filter(None, [parse_policy(a.auto_augment)]))
    jitter = a.color_jitter if isinstance(a.color_jitter, tuple | list) else [a.color_jitter] * 3
    return (ColorJitter(tuple(jitter)),) if a.is_random and a.color_jitter else ()


def _split_of(dataset: Any, is_training: bool) -> Split:
    """The images of a dataset, in its order."""
    if isinstance(dataset, str | os.PathLike):
        root, _, split = os.fspath(dataset).rstrip("/").rpartition("/")
        place, cache = root_of(root or "."), cache_folder(None)
        try:
            index = open_index(place, split, cache)
        except DatasetNotFound as error:
            raise DatasetNotFound(f"dataset={os.fspath(dataset)!r}: {error}") from error
        return index if is_training else numbered_as_in_train(index, place, cache)
    if isinstance(dataset, timms.ImageDataset) and dataset.input_img_mode == "RGB" and dataset.target_transform is None:
        if isinstance(dataset.reader, ReaderImageFolder):
            return _split_of_files(dataset.reader)
        if isinstance(dataset.reader, ReaderImageInTar):
            return _split_of_tars(dataset.reader)
    raise ConfigError(
        f"dataset is {type(dataset).__name__}; expected timm's ImageDataset over a folder or tars, in RGB and without "
        "target_transform, or the path or URL of a split (docs/timm.md)"
    )


def _split_of_files(reader: ReaderImageFolder) -> Split:
    paths, labels = zip(*reader.samples, strict=True)
    root = os.path.join(reader.root, "")
    return Split(
        place=os.path.abspath(root),
        classes=tuple(map(str, reader.class_to_idx)),
        labels=np.array(labels, np.int32),
        **joined([os.fsencode(path.removeprefix(root)) for path in paths]),
    )


def _split_of_tars(reader: ReaderImageInTar) -> Split:
    """A tar in a tar is a part of the outer one."""
    root = os.path.abspath(reader.root)
    members, outer, inner = zip(*reader.samples, strict=True)
    files, containers = np.unique([name or os.path.basename(root) for name in outer], return_inverse=True)
    starts = [member.offset_data + (tar.offset_data if tar else 0) for member, tar in zip(members, inner, strict=True)]
    return Split(
        place=os.path.dirname(root) if reader.root_is_tar else root,
        classes=tuple(map(str, reader.class_name_to_idx)),
        labels=np.array(reader.targets, np.int32),
        **joined([os.fsencode(member.name) for member in members]),
        sizes=np.array([member.size for member in members], np.int64),
        containers=tuple(files.tolist()),
        container_ids=containers.astype(np.int32),
        offsets=np.array(starts, np.int64),
    )
