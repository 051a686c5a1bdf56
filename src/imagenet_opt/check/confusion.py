"""Judges the labels of val by a trained network's predictions on train and val.

A network that is right on train and wrong on val may be overfitted, or the images of val may be in the wrong folders.
With wrong folders, two images of one folder get the same prediction, which is not the class of the folder.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Confusion = NDArray[np.int64]
"""(num_classes, num_outputs): number of images in the folder of a class for which the network predicts an output."""

LEARNED = 0.3
"""Below this accuracy on train a network cannot judge labels."""
LEAST_IMAGES, LEAST_SHARE = 5, 0.8
"""Number of images of a folder, and share with the same prediction, from which a single folder is reported."""


@dataclass(frozen=True)
class Labels:
    """kind: `permuted`: folders of val hold other classes; `partly`: some folders do; `wrong`: the network fails on
    val without such a pattern; `unknown`: the network has not learned train; else `right`.

    mapping: (class of the folder, class that the images of the folder seem to have), the most certain first.
    """

    kind: Literal["right", "partly", "permuted", "wrong", "unknown"]
    train_accuracy: float
    val_accuracy: float
    train_consistency: float
    val_consistency: float
    mapping: tuple[tuple[int, int], ...]


def judge_labels(train: Confusion, val: Confusion) -> Labels:
    """Compare the predictions of one network on both splits."""
    accuracies, consistencies = (accuracy(train), accuracy(val)), (consistency(train), consistency(val))
    if accuracies[0] < LEARNED:
        return Labels("unknown", *accuracies, *consistencies, ())
    if accuracies[1] < accuracies[0] / 3:
        mapping = elsewhere(val, least_images=2)
        several = (
            len({answer for _, answer in mapping}) > len(mapping) / 2
        )  # else the network predicts one class for most of val
        if several and consistencies[1] > consistencies[0] / 2:
            return Labels("permuted", *accuracies, *consistencies, mapping)
        return Labels("wrong", *accuracies, *consistencies, ())
    on_train = class_accuracies(train)
    swapped = [pair for pair in elsewhere(val, least_images=LEAST_IMAGES) if (on_train[pair[0]] or 0) >= 0.5]
    return Labels("partly" if swapped else "right", *accuracies, *consistencies, tuple(swapped))


def accuracy(confusion: Confusion) -> float:
    total = confusion.sum()
    return float(np.trace(confusion) / total) if total else 0.0


def class_accuracies(confusion: Confusion) -> list[float | None]:
    """Accuracy of each class; None for a class without images."""
    counts, right = confusion.sum(1).tolist(), np.diagonal(confusion).tolist()
    return [correct / num if num else None for correct, num in zip(right, counts, strict=True)]


def consistency(confusion: Confusion) -> float:
    """Probability that two images of one folder get the same prediction, right or wrong; unbiased for few images."""
    counts = confusion.sum(1)
    pairs = (counts * (counts - 1)).sum()
    return float((confusion * (confusion - 1)).sum() / pairs) if pairs else 0.0


def elsewhere(confusion: Confusion, *, least_images: int) -> tuple[tuple[int, int], ...]:
    """(class, prediction) for classes with at least `least_images` images whose usual prediction is another class."""
    counts, answers = confusion.sum(1), confusion.argmax(1)
    share = confusion.max(1) / np.maximum(counts, 1)
    wrong = np.flatnonzero((counts >= least_images) & (share >= LEAST_SHARE) & (answers != np.arange(len(confusion))))
    order = wrong[np.lexsort((-counts[wrong], -share[wrong]))]
    return tuple((int(label), int(answers[label])) for label in order)
