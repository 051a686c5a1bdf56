"""All checks of a data set and a run: classes, counts, files, decoding, duplicates, memory, labels."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from imagenet_opt.check.classes import judge_classes
from imagenet_opt.check.files import judge_decoding, judge_duplicates
from imagenet_opt.check.labels import check_labels
from imagenet_opt.check.result import CheckResult
from imagenet_opt.config.build import device_of, num_processes, share_batch, wants_gpu
from imagenet_opt.config.compose import composed
from imagenet_opt.config.dataset import DataSet, data_of
from imagenet_opt.data.index.files import Status, files_of, status_of
from imagenet_opt.data.index.split import Split, subset, with_classes_of
from imagenet_opt.display.progress import progress
from imagenet_opt.errors import ClassMismatch, EmptyClass
from imagenet_opt.evaluate.network import saved
from imagenet_opt.machine import is_lustre, usable_cpus
from imagenet_opt.probe.memory_need import gpu_bytes, judge_need

Rows = NDArray[np.int64]

_FEW = 256
"""Up to this many images, decoding in this process takes less time than starting processes."""


def check(
    config: DictConfig, overrides: tuple[str, ...], *, ckpt: Path | None = None, num_samples: int | None
) -> list[CheckResult]:
    """All verdicts.

    config: composed from `overrides`. num_samples: number of samples of each split to decode, compare and classify;
    None for all.
    Raises ImagenetOptError where nothing can be checked.
    """
    data, opened, verdicts = data_of(config), [], []
    for split in ("train", "val"):
        try:
            opened.append(data.open(split))
        except EmptyClass as error:
            verdicts.append(CheckResult(f"classes, {split}", "error", f"{error}; nothing else was checked"))
    if verdicts:
        return verdicts
    train, val = opened
    rows = [_spread_over_classes(index.labels, num_samples or len(index)) for index in (train, val)]
    verdicts += judge_classes(train, val)
    verdicts += _files(data, train, val, rows)
    verdicts += _memory(config, num_classes=len(train.classes))
    if ckpt is None:
        return verdicts
    try:
        val = with_classes_of(train, val)
    except ClassMismatch:
        return [*verdicts, CheckResult("labels", "warning", "not checked, as the classes differ")]
    network = saved(ckpt)
    loading = data_of(composed((*network.overrides, *overrides))).loading
    with progress("labels", "images") as show:
        return [*verdicts, check_labels(network, subset(train, rows[0]), subset(val, rows[1]), loading, show)]


def _spread_over_classes(labels: NDArray[np.int32], num: int) -> Rows:
    """Rows of `num` random samples (or of all), ascending, with the same number from each class, or one more.
    Classes with too few samples leave their share to the others."""
    if num >= len(labels):
        return np.arange(len(labels))
    chance = np.random.default_rng(0).random(len(labels))
    order = np.lexsort((chance, labels))
    place_in_class = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return np.sort(order[np.lexsort((chance[order], place_in_class))[:num]])


def _files(data: DataSet, train: Split, val: Split, rows: list[Rows]) -> list[CheckResult]:
    """Verdicts that need the files. In packed data, all of val is checked for duplicates: the index has checksums."""
    results, sizes = list[CheckResult](), []
    for name, index in (("train", train), ("val", val)):
        status = _status(name, index)
        sizes.append(status.sizes)
        if not index.containers:
            results += _judge_status(name, index, status)
    for name, index, decoded in (("train", train, rows[0]), ("val", val, rows[1])):
        with progress(f"decoding, {name}", "images") as show:
            workers = usable_cpus() if len(decoded) > _FEW else 1
            results += judge_decoding(name, index, decoded, workers=workers, loading=data.loading, on_progress=show)
    if (train.place, train.containers) == (val.place, val.containers):
        text = f"train and val are the same folder, {train.place}: accuracy will be meaningless (data.val_folder)"
        return [*results, CheckResult("val in train", "error", text)]
    compared = np.arange(len(val)) if len(val.checksums) and len(train.checksums) else rows[1]
    with progress("duplicates", "files") as show:
        return [*results, *judge_duplicates((train, val), sizes, compared, data.loading, show)]


def _status(name: str, index: Split) -> Status:
    """Size of each sample in bytes, by the index of shards and of objects; blocks: of files."""
    if len(index.sizes):
        return Status(index.sizes, index.sizes)
    with progress(f"sizes, {name}", "files") as show:
        return status_of(files_of(index), show)


def _judge_status(name: str, index: Split, status: Status) -> Iterator[CheckResult]:
    """Verdicts on empty files, and on Lustre on files that are not fetched yet."""
    empty, gone = np.flatnonzero(status.sizes == 0), np.flatnonzero(status.sizes < 0)
    if bad := tuple(index.path(int(i)) for i in (*empty, *gone)):
        text = f"{len(empty)} of {len(index):,} files have 0 bytes, {len(gone)} cannot be accessed"
        yield CheckResult(f"empty files, {name}", "error", f"{text}; restore or remove them", bad)
    else:
        yield CheckResult(f"empty files, {name}", "ok", f"none of {len(index):,}")
    if index.is_remote or not is_lustre(index.folder):
        return
    if released := status.released.sum():
        text = (
            f"Lustre does not hold the data of {released:,} of {len(index):,} files: the first read of each file waits "
            "for the archive; imagenet-opt hydrate fetches them before training"
        )
        yield CheckResult(f"lazy files, {name}", "warning", text)
    else:
        yield CheckResult(f"lazy files, {name}", "ok", "Lustre holds the data of all files")


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
