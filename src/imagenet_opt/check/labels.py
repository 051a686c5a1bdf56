"""Judges the labels of val by a trained network's predictions on train and val.

A network that is right on train and wrong on val may be overfitted, or the images of val may be in the wrong folders.
With wrong folders, two images of one folder get the same prediction, which is not the class of the folder.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from imagenet_opt.check.result import CheckResult, Level
from imagenet_opt.data.index.split import Split
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.evaluate.evaluate import predictions
from imagenet_opt.evaluate.network import Network

Confusion = NDArray[np.int64]
"""(num_classes, num_classes): number of images in the folder of a class for which the network predicts a class."""

LEARNED = 0.3
"""Below this accuracy on train a network cannot judge labels."""
LEAST_IMAGES, LEAST_SHARE = 5, 0.8
"""Number of images of a folder, and share with the same prediction, from which a single folder is reported."""
_MOST_NAMED = 3
_REMEDY = (
    "sort the validation images into class folders again, by the official list of labels "
    "(imagenet-opt pack val_labels=FILE)"
)


Kind = Literal["right", "partly", "permuted", "wrong", "unknown"]
"""`permuted`: folders of val hold other classes; `partly`: some folders do; `wrong`: the network fails on val without
such a pattern; `unknown`: the network has not learned train; else `right`."""
Mapping = tuple[tuple[int, int], ...]
"""(class of the folder, class that the images of the folder seem to have), the most certain first."""


def check_labels(
    network: Network, train: Split, val: Split, loading: LoaderOptions, on_progress: Callable[[int, int], None]
) -> CheckResult:
    """Classify the images of both splits. loading: of images as the network's own run validated with them.

    Raises CheckpointMismatch for a network that does not know the classes.
    """
    device, done = torch.device("cuda" if torch.cuda.is_available() else "cpu"), 0
    confusions = np.zeros((2, len(train.classes), len(train.classes)), np.int64)
    for split, confusion in zip((train, val), confusions, strict=True):
        for logits, labels in predictions(network, split, replace(loading, on_bad_sample="skip"), device):
            np.add.at(confusion, (labels.cpu().numpy(), logits.argmax(1).cpu().numpy()), 1)
            on_progress(done := done + len(labels), len(train) + len(val))
    return _result(confusions[0], confusions[1], val)


def judge_labels(train: Confusion, val: Confusion) -> tuple[Kind, Mapping]:
    """Compare the predictions of one network on both splits."""
    if accuracy(train) < LEARNED:
        return "unknown", ()
    if accuracy(val) < accuracy(train) / 3:
        mapping = _elsewhere(val, least_images=2)
        several = len({answer for _, answer in mapping}) > len(mapping) / 2  # else most of val gets one prediction
        permuted = several and consistency(val) > consistency(train) / 2
        return ("permuted", mapping) if permuted else ("wrong", ())
    learned = 2 * np.diagonal(train) >= np.maximum(train.sum(1), 1)
    swapped = tuple(pair for pair in _elsewhere(val, least_images=LEAST_IMAGES) if learned[pair[0]])
    return "partly" if swapped else "right", swapped


def accuracy(confusion: Confusion) -> float:
    total = confusion.sum()
    return float(np.trace(confusion) / total) if total else 0.0


def consistency(confusion: Confusion) -> float:
    """Probability that two images of one folder get the same prediction, right or wrong; unbiased for few images."""
    counts = confusion.sum(1)
    pairs = (counts * (counts - 1)).sum()
    return float((confusion * (confusion - 1)).sum() / pairs) if pairs else 0.0


def _elsewhere(confusion: Confusion, *, least_images: int) -> Mapping:
    """(class, prediction) for classes with at least `least_images` images whose usual prediction is another class."""
    counts, answers = confusion.sum(1), confusion.argmax(1)
    share = confusion.max(1) / np.maximum(counts, 1)
    wrong = np.flatnonzero((counts >= least_images) & (share >= LEAST_SHARE) & (answers != np.arange(len(confusion))))
    order = wrong[np.lexsort((-counts[wrong], -share[wrong]))]
    return tuple((int(label), int(answers[label])) for label in order)


def _result(train: Confusion, val: Confusion, split: Split) -> CheckResult:
    kind, pairs = judge_labels(train, val)
    mapping = tuple(f"{split.place}/{split.classes[a]} seems to hold {split.classes[b]}" for a, b in pairs)
    level: Level = "ok"
    rates, first = (
        f"{100 * accuracy(train):.1f} % of train and {100 * accuracy(val):.1f} % of val",
        mapping[:_MOST_NAMED],
    )
    text = f"the network is right on {rates}"
    if kind == "permuted":
        level = "error"
        text += (
            f", yet two images of one folder of val get the same prediction in {100 * consistency(val):.0f} % of "
            f"cases: the folders hold other classes than their names say. {'; '.join(first)}. {_REMEDY}"
        )
    elif kind == "partly":
        level = "warning"
        text += f"; {len(mapping)} folders of val seem to hold another class: {'; '.join(first)}. Look at their images"
    elif kind == "wrong":
        level = "error" if accuracy(val) <= 2 / len(split.classes) else "warning"
        text += ": single files of val have wrong labels, val is damaged, or the network is overfitted"
    elif kind == "unknown":
        level = "info"
        text += ": the network has learned too little to judge labels; choose a ckpt= with more training"
    return CheckResult("labels", level, text, mapping)
