"""Accuracy by ReaL labels: people labelled each image of ImageNet's validation set with all classes in the image.

Source: Beyer et al., Are we done with ImageNet?, arXiv 2006.07159. Images without a label do not count.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from imagenet_opt.data.batch import Batch
from imagenet_opt.errors import CheckpointMismatch, ConfigError, DataError, first_line, printable
from imagenet_opt.evaluate.result import Result

_NUM_IMAGES = 50_000
_NUM_CLASSES = 1000
_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.\w+$")


def read_real_labels(file: Path) -> list[list[int]]:
    """The class numbers of each image, in the order of the file names. Raises ConfigError for another file."""
    expected = f"expected real.json of {_NUM_IMAGES:,} lists of class numbers from 0 to {_NUM_CLASSES - 1}"
    try:
        labels = json.loads(file.expanduser().read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise ConfigError(f"--real-labels {file} cannot be read ({reason}); {expected}") from error
    if not isinstance(labels, list) or len(labels) != _NUM_IMAGES:
        content = f"{len(labels):,} entries" if isinstance(labels, list | dict) else "no list"
        raise ConfigError(f"--real-labels {file} holds {content}; {expected}")
    if bad := next((i for i, numbers in enumerate(labels, 1) if not _are_classes(numbers)), None):
        raise ConfigError(f"--real-labels {file}: entry {bad} is {str(labels[bad - 1])[:40]}; {expected}")
    return labels


def _are_classes(numbers: object) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < _NUM_CLASSES for number in numbers)


class RealAccuracy:
    """Counts right answers, on the device. An answer is right if it is one of the image's labels.

    labels: see read_real_labels. paths: of the validation images, in the order of their index. logits: the number of
    the logit of each class. Raises DataError for images with other names, CheckpointMismatch for a network without
    ImageNet's classes.
    """

    def __init__(
        self, labels: list[list[int]], paths: Iterable[str], logits: Sequence[int], device: torch.device
    ) -> None:
        if len(logits) != _NUM_CLASSES:
            raise CheckpointMismatch(
                f"ReaL labels (--real-labels) are of ImageNet's {_NUM_CLASSES} classes, and the network has "
                f"{len(logits)}; choose another ckpt=, or leave --real-labels out"
            )
        in_order = [labels[_position(path)] for path in paths]
        most = max(1, max(map(len, in_order)))
        rows = [[logits[number] for number in numbers] + [-1] * (most - len(numbers)) for numbers in in_order]
        self._logits = torch.tensor(rows, device=device)
        self._sums = torch.zeros(2, dtype=torch.int64, device=device)

    def add(self, answers: Tensor, batch: Batch) -> None:
        """answers: numbers of logits, int64 (N,)."""
        right = self._logits[batch.indices]
        counted = batch.valid & (right >= 0).any(1)
        hits = counted & (right == answers[:, None]).any(1)
        self._sums += torch.stack([hits.sum(), counted.sum()])

    def added_to(self, result: Result) -> Result:
        """`result` with the share of right answers, and the number of images with labels."""
        hits, images = self._sums.tolist()
        return replace(result, real_top1=hits / images if images else None, real_images=images)


def _position(path: str) -> int:
    match = _NAME.search(path)
    if match is None or not 1 <= int(match[1]) <= _NUM_IMAGES:
        raise DataError(
            f"{printable(path)} has no ReaL labels (--real-labels); expected ImageNet's validation images with their "
            "names, ILSVRC2012_val_00000001.JPEG to ILSVRC2012_val_00050000.JPEG"
        )
    return int(match[1]) - 1
