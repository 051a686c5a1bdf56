"""Checks that train and val have the same classes, and plausible numbers of images, or those of ImageNet.

ImageNet's counts are those of ILSVRC 2012 (arXiv 1409.0575, table 2).
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from imagenet_opt.check.result import CheckResult
from imagenet_opt.data.index.split import Split, numbers, with_classes_of
from imagenet_opt.errors import ClassMismatch

NUM_CLASSES, NUM_TRAIN, NUM_VAL = 1000, 1_281_167, 50_000
VAL_PER_CLASS = 50
LEAST_TRAIN, MOST_TRAIN = 732, 1300
"""Smallest and largest number of training images of a class."""
_WORDNET = re.compile(r"n\d{8}")
_TINY = 10
_IMBALANCE = 10.0


def judge_classes(train: Split, val: Split) -> Iterator[CheckResult]:
    """Verdicts that need only the two indexes."""
    yield _agreement(train, val)
    if hidden := tuple(name for name in train.classes if name.startswith(".") or name == "__MACOSX"):
        text = f"{len(hidden)} hidden folders are classes: remove them from train and val, unless they hold a class"
        yield CheckResult("hidden folders", "warning", text, hidden)
    for name, split in (("train", train), ("val", val)):
        if split.others:
            text = f"{sum(split.others.values()):,} files are no images by their names: {numbers(split.others)}"
            yield CheckResult(f"left out, {name}", "warning", f"{text}; training does not see them")
        if split.open_ends:
            yield CheckResult(f"end marks, {name}", "warning", split.doubt)
    if is_imagenet(train):
        yield _imagenet_counts("training images", train, NUM_TRAIN, LEAST_TRAIN, MOST_TRAIN)
        yield _imagenet_counts("validation images", val, NUM_VAL, VAL_PER_CLASS, VAL_PER_CLASS)
    else:
        yield _counts("training images", train)
        yield _counts("validation images", val)


def is_imagenet(split: Split) -> bool:
    """Whether the data set claims to be ImageNet: it has 1000 classes, or all names are like n01440764."""
    return len(split.classes) == NUM_CLASSES or all(map(_WORDNET.fullmatch, split.classes))


def _agreement(train: Split, val: Split) -> CheckResult:
    only = tuple(
        f"only in {split.place}: {name}"
        for split, other in ((train, val), (val, train))
        for name in sorted({*split.classes} - {*other.classes})
    )
    try:
        with_classes_of(train, val)
    except ClassMismatch as error:
        return CheckResult("classes", "error", str(error), only)
    if only:
        text = f"{len(only)} of {len(train.classes)} classes have no validation images: the validation leaves them out"
        return CheckResult("classes", "warning", text, only)
    return CheckResult("classes", "ok", f"train and val have the same {len(train.classes)} classes")


def _imagenet_counts(check: str, split: Split, num_images: int, low: int, high: int) -> CheckResult:
    counts = np.bincount(split.labels, minlength=len(split.classes))
    odd = np.flatnonzero((counts < low) | (counts > high))
    total, each = f"{len(split):,} in {len(counts):,} classes", f"{low:,}" if low == high else f"{low:,} to {high:,}"
    if not len(odd) and (len(split), len(counts)) == (num_images, NUM_CLASSES):
        return CheckResult(check, "ok", f"{total}, {each} a class, as in ImageNet")
    text = (
        f"{total}, not {num_images:,} in {NUM_CLASSES:,}; {len(odd)} classes do not have {each} images as in ImageNet"
    )
    return CheckResult(check, "warning", f"{text}. Is the archive fully unpacked?", _each(split, odd))


def _counts(check: str, split: Split) -> CheckResult:
    counts = np.bincount(split.labels, minlength=len(split.classes))
    fewest, most = f"{counts.min():,}", f"{counts.max():,}"
    text = f"{len(split):,}, {most if fewest == most else f'{fewest} to {most}'} a class"
    if len(tiny := np.flatnonzero(counts < _TINY)):
        return CheckResult(check, "warning", f"{text}; {len(tiny)} classes have fewer than {_TINY}", _each(split, tiny))
    if counts.max() > _IMBALANCE * counts.min():
        rare = np.flatnonzero(counts * _IMBALANCE < counts.max())
        text += "; the network will hardly learn the rarest classes"
        return CheckResult(check, "warning", text, _each(split, rare))
    return CheckResult(check, "ok", text)


def _each(split: Split, classes: Iterable[int]) -> tuple[str, ...]:
    counts = np.bincount(split.labels, minlength=len(split.classes))
    return tuple(
        f"{split.classes[label]}: {counts[label]} image{'' if counts[label] == 1 else 's'}" for label in classes
    )
