"""Verdicts on the files of a data set: sizes, decoding, and duplicates."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.check.corrupt import Damaged
from imagenet_opt.check.duplicates import Duplicate
from imagenet_opt.check.result import CheckResult
from imagenet_opt.data.index.files import Status
from imagenet_opt.data.index.folder_index import Split

_MANY = 0.01
"""Share of validation images with a duplicate from which the validation accuracy is misleading."""


def judge_status(name: str, split: Split, status: Status, *, on_lustre: bool) -> Iterator[CheckResult]:
    """Verdicts on every file of a folder tree, from `stat` only."""
    empty, gone = np.flatnonzero(status.sizes == 0), np.flatnonzero(status.sizes < 0)
    bad = tuple(split.path(int(i)) for i in (*empty, *gone))
    check = f"empty files, {name}"
    if bad:
        text = (
            f"{len(empty)} of {len(split):,} files have 0 bytes, {len(gone)} cannot be accessed; restore or remove them"
        )
        yield CheckResult(check, "error", text, bad)
    else:
        yield CheckResult(check, "ok", f"none of {len(split):,}")
    if on_lustre and not status.released.any():
        yield CheckResult(f"lazy files, {name}", "ok", "Lustre holds the data of all files")
    elif on_lustre:
        text = (
            f"Lustre does not hold the data of {status.released.sum():,} of {len(split):,} files: the first read of "
            "each file waits for the archive; imagenet-opt hydrate fetches them before training"
        )
        yield CheckResult(f"lazy files, {name}", "warning", text)


def judge_examined(name: str, num: int, damaged: Sequence[Damaged]) -> Iterator[CheckResult]:
    """Verdicts on `num` samples that were decoded completely."""
    bad = tuple(sample.reason for sample in damaged if sample.reason)
    if bad:
        text = f"{len(bad)} of {num:,} cannot be used; training skips them up to data.max_bad_fraction"
        yield CheckResult(f"decoding, {name}", "error", text, bad)
    else:
        yield CheckResult(f"decoding, {name}", "ok", f"all {num:,} tested images can be decoded")
    if cut := tuple(sample.name for sample in damaged if not sample.reason):
        text = f"{len(cut)} of {num:,} are truncated; decoders fill in the missing part. Copy these files again"
        yield CheckResult(f"truncated, {name}", "warning", text, cut)


def judge_twins(train: Split, val: Split, rows: NDArray[np.int64], twins: Sequence[Duplicate]) -> Iterator[CheckResult]:
    """Verdicts on the duplicates of the validation samples `rows`."""
    in_train = [twin for twin in twins if twin.other_split == 0]
    effect = "train contains them, so the validation accuracy is too high"
    yield _twins("val in train", val, train, len(rows), in_train, effect)
    two_labels = [twin for twin in twins if twin.other_split and val.labels[twin.row] != val.labels[twin.other_row]]
    yield _twins("twice in val", val, val, len(rows), two_labels, "they have two labels, and one label is wrong")


def same_folder(index: Split) -> CheckResult:
    """The verdict when train and val are one folder, in place of a list of all images."""
    text = f"train and val are the same folder, {index.place}: accuracy will be meaningless (data.val_folder)"
    return CheckResult("val in train", "error", text)


def _twins(check: str, val: Split, other: Split, num: int, twins: Sequence[Duplicate], effect: str) -> CheckResult:
    if not twins:
        return CheckResult(check, "ok", f"none of {num:,} validation images, byte for byte")
    images = len({twin.row for twin in twins})
    text = f"{images} of {num:,} validation images, byte for byte: {effect}"
    lines = tuple(f"{val.path(twin.row)} = {other.path(twin.other_row)}" for twin in twins)
    return CheckResult(check, "error" if images > _MANY * num else "warning", text, lines)
