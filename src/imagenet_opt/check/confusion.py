"""What a network's answers on train and val say about the labels of val.

A network that knows its training images and fails on validation may be overfitted, or validation may lie in the wrong
folders. The second shows in how it fails: two images of one folder then get the same answer, only another one than the
folder's.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Confusion = NDArray[np.int64]
"""(num_classes, num_answers): images of the class (of the folder) that got the answer."""

LEARNED = 0.3
"""Accuracy on train, below which a network says nothing of labels."""
LEAST_IMAGES, LEAST_SHARE = 5, 0.8
"""Of one class, for a mapping of that class alone to be told."""


@dataclass(frozen=True)
class Labels:
    """kind: `permuted` where folders of val hold other classes; `wrong` where val fails without such an order; `partly`
    where single classes do; `unknown` where the network has not learned train either; else `right`.

    mapping: (class of the folder, class that its images seem to be), the surest first.
    """

    kind: Literal["right", "partly", "permuted", "wrong", "unknown"]
    train_accuracy: float
    val_accuracy: float
    train_consistency: float
    val_consistency: float
    mapping: tuple[tuple[int, int], ...]


def judge_labels(train: Confusion, val: Confusion) -> Labels:
    """Compare answers of one network on both splits."""
    accuracies, consistencies = (accuracy(train), accuracy(val)), (consistency(train), consistency(val))
    single = elsewhere(val, least_images=LEAST_IMAGES)
    if accuracies[0] < LEARNED:
        return Labels("unknown", *accuracies, *consistencies, ())
    if accuracies[1] < accuracies[0] / 3:
        mapping = elsewhere(val, least_images=2)
        several = len({answer for _, answer in mapping}) > len(mapping) / 2  # else all of val looks like one class
        if several and consistencies[1] > consistencies[0] / 2:
            return Labels("permuted", *accuracies, *consistencies, mapping)
        return Labels("wrong", *accuracies, *consistencies, ())
    known = tuple(pair for pair in single if _share(train, pair[0], pair[0]) >= 0.5)
    return Labels("partly" if known else "right", *accuracies, *consistencies, known)


def accuracy(confusion: Confusion) -> float:
    total = confusion.sum()
    return float(np.trace(confusion) / total) if total else 0.0


def class_accuracies(confusion: Confusion) -> NDArray[np.float64]:
    """Of each class; nan where it has no images."""
    counts = confusion.sum(1)
    right = np.diagonal(confusion)[: len(confusion)]
    return np.where(counts > 0, right / np.maximum(counts, 1), np.nan)


def consistency(confusion: Confusion) -> float:
    """Chance that two images of one folder get the same answer, right or wrong, without bias for few images."""
    counts = confusion.sum(1)
    pairs = (counts * (counts - 1)).sum()
    return float((confusion * (confusion - 1)).sum() / pairs) if pairs else 0.0


def elsewhere(confusion: Confusion, *, least_images: int) -> tuple[tuple[int, int], ...]:
    """Classes with so many images that mostly get one answer, which is another class; those with most images first."""
    counts, answers = confusion.sum(1), confusion.argmax(1)
    share = confusion.max(1) / np.maximum(counts, 1)
    found = np.flatnonzero((counts >= least_images) & (share >= LEAST_SHARE) & (answers != np.arange(len(confusion))))
    order = found[np.lexsort((-counts[found], -share[found]))]
    return tuple((int(label), int(answers[label])) for label in order)


def _share(confusion: Confusion, label: int, answer: int) -> float:
    return float(confusion[label, answer] / max(1, confusion[label].sum()))
