"""All checks of a data set and a run: classes, counts, batch, files, decoding, duplicates, memory, labels."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from imagenet_opt.check.classes import judge_classes
from imagenet_opt.check.corrupt import examine
from imagenet_opt.check.duplicates import find_twins
from imagenet_opt.check.files import judge_examined, judge_status, judge_twins, same_folder
from imagenet_opt.check.labels import check_labels
from imagenet_opt.check.result import CheckResult
from imagenet_opt.config.build import device_of, num_processes, share_batch, wants_gpu
from imagenet_opt.config.compose import composed
from imagenet_opt.config.dataset import DataSet, data_of
from imagenet_opt.data.index.files import Status, files_of, spread_over_classes, status_of, subset
from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.object_index import ObjectIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.loader import train_order
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.display.progress import progress
from imagenet_opt.errors import BatchTooLarge, ConfigError, EmptyClass
from imagenet_opt.evaluate.network import saved
from imagenet_opt.machine import is_lustre, usable_cpus
from imagenet_opt.probe.memory_need import gpu_bytes, judge_need

Index = FileIndex | ShardIndex
Rows = NDArray[np.int64]

_FEW = 256
"""Up to this many images, decoding in this process takes less time than starting processes."""


def check(overrides: tuple[str, ...], *, ckpt: Path | None = None, num_samples: int | None) -> list[CheckResult]:
    """All verdicts.

    num_samples: number of samples of each split to decode, compare and classify; None for all.
    Raises ImagenetOptError where nothing can be checked.
    """
    config = composed(overrides)
    is_demo = "data=demo" in overrides
    data = data_of(config, or_demo=is_demo)
    opened, verdicts = [], []
    for split in ("train", "val"):
        try:
            opened.append(data.open(split))
        except EmptyClass as error:
            verdicts.append(CheckResult(f"classes, {split}", "error", f"{error}; nothing else was checked"))
    if verdicts:
        return verdicts
    train, val = opened
    rows = [spread_over_classes(index.labels, num_samples or len(index)) for index in (train, val)]
    verdicts += judge_classes(train, val)
    verdicts.append(_batch(config, data.loading, num_images=len(train)))
    verdicts += _files(data, train, val, rows)
    verdicts += _memory(config, num_classes=len(train.classes))
    if ckpt is None:
        return verdicts
    if train.classes != val.classes:
        return [*verdicts, CheckResult("labels", "warning", "not checked, as the classes differ")]
    network = saved(ckpt)
    as_validated = composed((*network.overrides, *overrides))
    loading = data_of(as_validated, or_demo=is_demo).loading
    chosen, val_chosen = subset(train, rows[0]), subset(val, rows[1])
    with progress("labels", "images") as show:
        return [*verdicts, check_labels(network, chosen, val_chosen, loading, show)]


def _batch(config: DictConfig, loading: LoaderOptions, num_images: int) -> CheckResult:
    """Whether the training images fill a batch, by the code that refuses to train."""
    try:
        order = train_order(num_images, loading, world_size=num_processes(config, device_of(config))[1])
    except ConfigError as error:  # a smaller batch trains with the same files
        return CheckResult("batch", "warning" if isinstance(error, BatchTooLarge) else "error", str(error))
    return CheckResult("batch", "ok", f"{order.epoch_samples:,} training images an epoch, {order.global_batch} a step")


def _files(data: DataSet, train: Index, val: Index, rows: list[Rows]) -> list[CheckResult]:
    """Verdicts that need the files. In packed data, all of val is checked for duplicates: the index has checksums."""
    (train_sizes, results), (val_sizes, val_results) = _sizes("train", train), _sizes("val", val)
    results += val_results
    compared = np.arange(len(val)) if isinstance(val, ShardIndex) and isinstance(train, ShardIndex) else rows[1]
    for name, index, decoded in (("train", train, rows[0]), ("val", val, rows[1])):
        with progress(f"decoding, {name}", "images") as show:
            workers = usable_cpus() if len(decoded) > _FEW else 1
            damaged = examine(index, decoded, workers=workers, loading=data.loading, on_progress=show)
        results += judge_examined(name, len(decoded), damaged)
    if train.place == val.place:
        return [*results, same_folder(train)]
    with progress("duplicates", "files") as show:
        twins = find_twins((train, val), (train_sizes, val_sizes), compared, data.loading, show)
    return [*results, *judge_twins(train, val, compared, twins)]


def _sizes(name: str, index: Index) -> tuple[NDArray[np.int64], list[CheckResult]]:
    """Size of each sample in bytes, and verdicts on empty and not yet fetched files; indexes of shards and of objects
    have the sizes."""
    if isinstance(index, ShardIndex):
        return index.sizes, []
    if isinstance(index, ObjectIndex):
        return index.sizes, list(judge_status(name, index, Status(index.sizes, index.sizes), on_lustre=False))
    with progress(f"sizes, {name}", "files") as show:
        status = status_of(files_of(index), show)
    return status.sizes, list(judge_status(name, index, status, on_lustre=is_lustre(index.folder)))


def _memory(config: DictConfig, num_classes: int) -> list[CheckResult]:
    """The verdict on the memory of a training step, if the run uses a GPU."""
    if not wants_gpu(config):
        return []
    share_batch(config, num_processes(config, device_of(config))[1])
    memory = gpu_bytes(config)
    judgement = judge_need(config, config.model.num_classes or num_classes, memory)
    if judgement is None:
        return []
    fits, text = judgement
    return [CheckResult("GPU memory", "warning" if not fits else "info" if memory is None else "ok", text)]
