"""Builds the loader: from an index to batches on the device, with store, reader, decoder, workers and prefetcher."""

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from imagenet_opt import machine
from imagenet_opt.data.batch import AnyBatch, to_images
from imagenet_opt.data.batch_keys import BatchKeySampler
from imagenet_opt.data.batch_memory import SharedBufferPool, slot_bytes
from imagenet_opt.data.budget import SPARE_BATCHES, LoaderBudget, fit_loader
from imagenet_opt.data.dataset import BatchDataset
from imagenet_opt.data.decode.decoder import Decoder, open_image
from imagenet_opt.data.decode.nvimagecodec import region_codec
from imagenet_opt.data.device_copies import DeviceCopies
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.loader_workers import worker_options
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.data.order import (
    PART_IMAGES,
    EvalOrder,
    SampleIds,
    TrainOrder,
    block_size_for,
    fingerprint,
    spread_by_class,
)
from imagenet_opt.data.prefetcher import BadSamples, DevicePrefetcher
from imagenet_opt.data.storage.cache_folder import cache_of
from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.data.storage.store import CachedStore, Store, ThrottledStore
from imagenet_opt.data.transforms.augment import Augmenter, Policy, RandomErasing, Shift, parse_policy
from imagenet_opt.data.transforms.crop import CropPlan, eval_crops, train_crops
from imagenet_opt.data.transforms.resize import ImageFormat

log = logging.getLogger(__name__)

_MEASURED = 48
"""Images from whose sizes the mean size of a crop is estimated."""


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """Place of a process. local_processes: processes on this machine, which share its memory. sharing_cpus: processes
    that share the usable CPUs."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    rank: int = 0
    world_size: int = 1
    local_processes: int = 1
    sharing_cpus: int = 1


def image_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Dtype of the images on the device. precision: Lightning's name."""
    half = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16} if device.type == "cuda" else {}
    return half.get(precision, torch.float32)


def train_loader(
    index: Split,
    options: LoaderOptions,
    rank_info: RankInfo,
    store: Store | None = None,
    *,
    largest_size: int | None = None,
    weights: NDArray[np.float64] | None = None,
    **of_dataset: Any,
) -> DevicePrefetcher:
    """Batches of shuffled random crops, for any number of epochs.

    store: provides the bytes of samples, for a measurement on some samples in whole blocks; None: the store of the
    index, for a run on all of them. largest_size: pixels of a side of the largest images that `sampler.size_of` will
    request, for planning the memory; None: `options.image_size`. weights: see TrainOrder. of_dataset: fields of
    BatchDataset instead of what follows from the options.
    """
    options = options.for_processes(rank_info.world_size)
    order = train_order(len(index), options, rank=rank_info.rank, world_size=rank_info.world_size, weights=weights)
    if store is not None:
        order = replace(order, has_fixed_blocks=True)
    elif order.num_dropped and rank_info.rank == 0:
        log.info(f"data: {order.num_dropped} of {order.num_samples} images of each epoch fill no whole batch")
    dataset = replace(_dataset(index, options, rank_info, order, store or store_of(index, options)), **of_dataset)
    return _prefetcher(index, dataset, options, rank_info, options.image_size, largest_size or options.image_size)


def train_order(
    num_samples: int,
    options: LoaderOptions,
    *,
    rank: int = 0,
    world_size: int = 1,
    weights: NDArray[np.float64] | None = None,
) -> TrainOrder:
    """The order of the training samples. Raises BatchTooLarge, and ConfigError for other options that do not fit."""
    options = options.for_processes(world_size)
    return TrainOrder(
        num_samples=num_samples,
        batch_size=options.batch_size,
        seed=options.seed,
        samples_per_epoch=options.samples_per_epoch,
        block_size=block_size_for(options.batch_size) if options.shuffle == "block" else 1,
        repetitions=options.repeated_augmentation,
        rank=rank,
        world_size=world_size,
        weights=weights,
    )


def eval_loader(
    index: Split,
    options: LoaderOptions,
    rank_info: RankInfo,
    *,
    pad: bool = True,
    spread: bool = False,
    **of_dataset: Any,
) -> DevicePrefetcher:
    """Batches of centred crops of every sample, in order. A batch has no more images than a part of a training batch,
    because validation runs the whole batch through the network at once. pad: whether the last batch is padded, and bad
    samples are replaced, and `valid` marks both; otherwise they are left out. spread: the first batches have all
    classes. of_dataset: see train_loader."""
    options = options.for_processes(rank_info.world_size)
    batch_size, rank, world_size = min(options.batch_size, PART_IMAGES), rank_info.rank, rank_info.world_size
    places = spread_by_class(index.labels) if spread else None
    order = EvalOrder(num_samples=len(index), batch_size=batch_size, rank=rank, world_size=world_size, order=places)
    dataset = replace(_dataset(index, options, rank_info, order, store_of(index, options)), pad=pad, **of_dataset)
    size = options.val_image_size or options.image_size
    return _prefetcher(index, dataset, options, rank_info, size, size)


def store_of(index: Split, options: LoaderOptions, *, drop_pages: bool = False, use_cache: bool = True) -> Store:
    """The store of an index, slowed down by `options`; of samples of a remote split, with its local cache.

    drop_pages: whether to evict files, or samples of the local cache, from the page cache after reading. use_cache:
    False to read from the remote storage each time, and to keep nothing.
    """
    if not index.is_remote or not use_cache:
        return _plain_store(index, options, drop_pages=drop_pages)
    whole, rows = (index, None) if index.whole is None else (index.whole, index.rows)
    cache = cache_of(whole, options.cache_gb, drop_pages=drop_pages)
    if cache is None:
        return _plain_store(index, options)
    return CachedStore(_plain_store(whole, options), cache, rows=rows)


def _plain_store(index: Split, options: LoaderOptions, *, drop_pages: bool = False) -> Store:
    store: Store = RecordStore(index, drop_pages=drop_pages)
    if options.added_latency_ms or options.max_mb_per_second is not None:
        rate = None if options.max_mb_per_second is None else options.max_mb_per_second * 1e6
        store = ThrottledStore(store, latency_seconds=options.added_latency_ms / 1000, bytes_per_second=rate)
    return store


def mean_crop_bytes(dataset: BatchDataset, image_size: int) -> float:
    """Mean bytes of a decoded crop, estimated from the sizes of some images that can be opened."""
    num_samples = len(dataset.labels)
    spread = np.linspace(0, num_samples - 1, min(_MEASURED, num_samples)).astype(np.int64)
    sizes = []
    for sample in dataset.reader.read((-1, 0), spread).samples:
        with suppress(Exception):  # the decoder names such a file
            if isinstance(sample, bytes):
                sizes.append(open_image(sample).size)
    dataset.reader.take_events()  # else each forked worker counts them
    widths, heights = np.array(sizes or [(500, 400)]).T
    draw = SampleIds(spread[: len(widths)], np.zeros(len(widths), np.int64), len(widths))
    crops, _ = dataset.crop_plan(draw, heights, widths, image_size)
    return 3 * float(np.minimum(crops.heights * crops.widths, dataset.decoder.max_crop_pixels).mean())


def batch_bytes(dataset: BatchDataset, image_size: int) -> int:
    """Shared memory of one batch, or of one part of a large batch."""
    num_images = -(-dataset.order.batch_size // dataset.num_parts)
    crop_bytes = 3.0 * image_size**2 if dataset.resize_here else mean_crop_bytes(dataset, image_size)
    return slot_bytes(int(num_images * crop_bytes))


def _dataset(
    index: Split, options: LoaderOptions, rank_info: RankInfo, order: TrainOrder | EvalOrder, store: Store
) -> BatchDataset:
    is_training = isinstance(order, TrainOrder)
    if is_training and options.train_crop == "random":
        plan: CropPlan = partial(train_crops, seed=options.seed, scale=options.crop_scale)
    else:
        plan = partial(eval_crops, crop_ratio=options.val_crop_ratio)
    return BatchDataset(
        reader=ReadAhead(store, reads_in_flight=options.reads_in_flight, timeout_seconds=options.read_timeout),
        decoder=Decoder(
            exif_rotation=options.exif_rotation,
            max_crop_pixels=options.max_crop_pixels,
            max_pixels=options.max_pixels,
            region_decode=options.region_decode,
        ),
        labels=index.labels,
        order=order,
        crop_plan=plan,
        augmenter=_augmenter(options) if is_training else None,
        interpolation=options.interpolation if is_training else options.val_interpolation or options.interpolation,
        resize_here=options.resize_on == "worker" or (options.resize_on == "auto" and rank_info.device.type != "cuda"),
        skip_bad=options.on_bad_sample == "skip",
        seed=options.seed,
        buffers=SharedBufferPool(num_workers=0, depth=1),
    )


def _augmenter(options: LoaderOptions) -> Augmenter | None:
    """The augmenter of training images; None if no option augments."""
    policy, share = parse_policy(options.augment), options.random_erasing
    red, green, blue = (min(255, max(0, round(255 * mean))) for mean in options.mean)
    policies: tuple[Policy, ...] = (Shift(options.random_shift, (red, green, blue)),) if options.random_shift else ()
    if policy:
        policies += (policy,)
    erasing = RandomErasing(probability=share) if share else None
    return Augmenter(seed=options.seed, policies=policies, erasing=erasing) if policies or erasing else None


def _prefetcher(
    index: Split, dataset: BatchDataset, options: LoaderOptions, rank_info: RankInfo, size: int, largest_size: int
) -> DevicePrefetcher:
    error = region_codec().error  # workers share the memory of a library that is loaded before they are forked
    if error and options.region_decode:
        remedy = "data.region_decode=false decodes whole images too, without this warning"
        tell_once(f"nvImageCodec does not work here ({error}), so decoding is slower; {remedy}", logging.WARNING)
    machine.allow_open_files()
    budget = fit_loader(
        num_workers=options.num_workers,
        prefetch_factor=options.prefetch_factor,
        batch_bytes=batch_bytes(dataset, largest_size),
        order_bytes=dataset.order.num_bytes,
        processes=rank_info.local_processes,
        sharing_cpus=rank_info.sharing_cpus,
    )
    if budget.message and isinstance(dataset.order, TrainOrder) and rank_info.rank == 0:
        log.info(budget.message)
    buffers = SharedBufferPool(num_workers=budget.num_workers, depth=budget.prefetch_factor + SPARE_BATCHES)
    keys = BatchKeySampler(
        num_batches=dataset.order.num_batches,
        image_size=size,
        num_parts=dataset.num_parts,
        first_parts=dataset.first_parts(budget.num_workers),
        on_first_key=buffers.restart,
    )
    num_samples, most = len(dataset.labels), options.max_bad_fraction
    format = ImageFormat(dtype=rank_info.dtype, interpolation=dataset.interpolation, mean=options.mean, std=options.std)
    return DevicePrefetcher(
        _data_loader(replace(dataset, buffers=buffers), keys, budget, is_remote=index.is_remote),
        keys,
        fingerprint=fingerprint(dataset.order, index.labels, index.classes),
        batch_size=dataset.order.batch_size,
        classes=tuple(index.classes),
        copies=DeviceCopies(rank_info.device, options.copies, buffers),
        finish=partial(to_images, format=format),
        bad=BadSamples(num_samples=num_samples, max_fraction=most, world_size=rank_info.world_size),
        buffers=buffers,
        budget=budget,
    )


def _data_loader(
    dataset: BatchDataset, keys: BatchKeySampler, budget: LoaderBudget, *, is_remote: bool
) -> "DataLoader[AnyBatch]":
    of_workers = worker_options(is_remote=is_remote) | {"prefetch_factor": budget.prefetch_factor}
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=keys,
        num_workers=budget.num_workers,
        persistent_workers=budget.num_workers > 0,
        generator=torch.Generator(),  # so that starting workers draws nothing from the model's generator
        **(of_workers if budget.num_workers else {}),
    )
