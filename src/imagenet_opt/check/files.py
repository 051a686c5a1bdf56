"""Verdicts on the files of a data set: sizes, what decoders say, and what is there twice."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.check.corrupt import Examined
from imagenet_opt.check.duplicates import Twin
from imagenet_opt.check.result import Verdict
from imagenet_opt.data.index.files import Status
from imagenet_opt.data.index.folder_index import Split

_MANY = 0.01
"""Share of the validation images with a twin, from which their accuracy means something else."""


def judge_status(name: str, split: Split, status: Status, *, on_lustre: bool) -> Iterator[Verdict]:
    """Of every file of a folder tree, from stat alone."""
    empty, gone = np.flatnonzero(status.sizes == 0), np.flatnonzero(status.sizes < 0)
    bad = tuple(split.path(int(i)) for i in (*empty, *gone))
    check = f"empty files, {name}"
    if bad:
        text = f"{len(empty)} of {len(split):,} have 0 bytes, {len(gone)} cannot be examined; restore or remove them"
        yield Verdict(check, "error", text, bad)
    else:
        yield Verdict(check, "ok", f"none of {len(split):,}")
    if on_lustre:
        yield _lazy(name, split, int(status.released.sum()))


def _lazy(name: str, split: Split, released: int) -> Verdict:
    check = f"lazy files, {name}"
    if not released:
        return Verdict(check, "ok", "Lustre holds the data of all")
    return Verdict(
        check,
        "warning",
        f"Lustre does not hold the data of {released:,} of {len(split):,}: the first read of each fetches it; "
        "imagenet-opt hydrate does so ahead",
    )


def judge_examined(name: str, num: int, found: Sequence[Examined]) -> Iterator[Verdict]:
    """Of `num` samples that were decoded to the end."""
    bad = tuple(one.reason for one in found if one.reason)
    cut = tuple(one.name for one in found if one.cut_short and not one.reason)
    if bad:
        text = f"{len(bad)} of {num:,} cannot be used; training skips them up to data.max_bad_fraction"
        yield Verdict(f"decoding, {name}", "error", text, bad)
    else:
        yield Verdict(f"decoding, {name}", "ok", f"all {num:,} that were tried")
    if cut:
        text = f"{len(cut)} of {num:,} are cut short; decoders invent the missing part of an image. Copy them again"
        yield Verdict(f"cut short, {name}", "warning", text, cut)
    modes = Counter(one.mode for one in found if one.mode and one.mode != "RGB")
    if modes:
        told = ", ".join(f"{count} {mode}" for mode, count in modes.most_common())
        others = tuple(f"{one.name}: {one.mode}" for one in found if one.mode and one.mode != "RGB")
        yield Verdict(f"colours, {name}", "info", f"{told} of {num:,}; all are converted to RGB", others)


def judge_twins(train: Split, val: Split, rows: NDArray[np.int64], twins: Sequence[Twin]) -> Iterator[Verdict]:
    """Of the validation samples `rows`."""
    seen = [
        (twin.row, f"{val.path(twin.row)} = {train.path(twin.other_row)}") for twin in twins if not twin.other_split
    ]
    yield _twins("val in train", len(rows), seen, "training sees these images too: validation accuracy is too high")
    two_labels = [
        (twin.row, f"{val.path(twin.row)} = {val.path(twin.other_row)}")
        for twin in twins
        if twin.other_split and val.classes[val.labels[twin.row]] != val.classes[val.labels[twin.other_row]]
    ]
    yield _twins("twice in val", len(rows), two_labels, "with two labels, of which one is wrong")


def same_folder(index: Split) -> Verdict:
    """Instead of naming every image twice."""
    text = f"train and val are the same folder, {index.folder}: validation accuracy is meaningless (data.val_folder)"
    return Verdict("val in train", "error", text)


def _twins(check: str, num: int, found: Sequence[tuple[int, str]], so_what: str) -> Verdict:
    images = len({row for row, _ in found})
    if not images:
        return Verdict(check, "ok", f"none of {num:,} validation images, byte for byte")
    text = f"{images} of {num:,} validation images, byte for byte: {so_what}"
    return Verdict(check, "error" if images > _MANY * num else "warning", text, tuple(line for _, line in found))
