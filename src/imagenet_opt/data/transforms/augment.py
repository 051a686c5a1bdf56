"""Augmentation of training batches: drawn by the worker, applied on the device of the batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imagenet_opt.data.randomness import sample_uniform
from imagenet_opt.data.transforms.augment_ops import Layer, apply_sorted, select, sorted_layer, to_device
from imagenet_opt.data.transforms.augment_policy import Policy
from imagenet_opt.data.transforms.resize import Size, height_width

_TRIES = 10
_AREA = (0.02, 1 / 3)
_RATIO = (0.3, 1 / 0.3)


Boxes = NDArray[np.int64]
"""(num_boxes, 5): row in the batch; top, left, height, width in pixels. At most one box for each image."""


@dataclass(frozen=True, kw_only=True)
class RandomErasing:
    """Erases one box of an image with `probability`, as timm does (timm.data.random_erasing; arXiv 1708.04896).

    The box has 1/50 to 1/3 of the area, and a height of 0.3 to 3.3 times its width. The first of ten tries that fits
    counts; if no try fits, the image stays.
    """

    probability: float

    stream: ClassVar[int] = 3
    num_draws: ClassVar[int] = 2 + 4 * _TRIES  # the second is unused

    def boxes(self, draws: NDArray[np.float64], size: Size) -> Boxes:
        """draws: float64 (N, num_draws) in [0, 1). size: of the images."""
        limits = np.array(height_width(size))
        u = draws[:, 2:].reshape(len(draws), _TRIES, 4)
        area = limits.prod() * (_AREA[0] + u[..., 0] * (_AREA[1] - _AREA[0]))
        ratio = np.exp(np.log(_RATIO[0]) + u[..., 1] * (np.log(_RATIO[1]) - np.log(_RATIO[0])))
        sides = np.round(np.sqrt(np.stack([area * ratio, area / ratio]))).astype(np.int64)
        fits = ((sides < limits[:, None, None]) & (sides > 0)).all(axis=0)
        first, rows = fits.argmax(axis=1), np.arange(len(u))
        heights, widths = sides[:, rows, first]
        tops = (u[rows, first, 2] * (limits[0] - heights + 1)).astype(np.int64)
        lefts = (u[rows, first, 3] * (limits[1] - widths + 1)).astype(np.int64)
        boxes = np.stack([rows, tops, lefts, heights, widths], axis=1)
        erased: Boxes = boxes[fits.any(axis=1) & (draws[:, 0] < self.probability)]
        return erased


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Changes of the images of one batch; all numbers are on the host. `layers` are applied before normalising,
    `erased` after."""

    layers: tuple[Layer, ...]
    erased: Boxes | None

    @classmethod
    def of_parts(cls, parts: "Sequence[Augmentation]", sizes: Sequence[int]) -> "Augmentation":
        """Join the augmentations of the parts of a batch. sizes: number of images of each part."""
        layers = []
        for same_layer in zip(*(part.layers for part in parts), strict=True):
            operations, arguments, fills = zip(*same_layer, strict=True)
            layers.append(Layer(np.concatenate(operations), np.concatenate(arguments), fills[0]))
        erased = [part.erased for part in parts if part.erased is not None]
        starts = accumulate(sizes, initial=0)
        boxes = [each + np.array([start, 0, 0, 0, 0]) for each, start in zip(erased, starts, strict=False)]
        return cls(layers=tuple(layers), erased=np.concatenate(boxes) if boxes else None)


@dataclass(frozen=True, kw_only=True)
class Augmenter:
    """Draws the augmentation of batches. The augmentation of an image is a function of (seed, pass, sample index)."""

    seed: int
    policies: tuple[Policy, ...]
    erasing: RandomErasing | None

    def draw(self, indices: NDArray[np.int64], pass_ids: NDArray[np.int64], size: int) -> Augmentation:
        """size: pixels of a side of the images."""

        def draws(source: Policy | RandomErasing) -> NDArray[np.float64]:
            return sample_uniform(self.seed, pass_ids, indices, source.num_draws, stream=source.stream)

        layers = tuple(layer for policy in self.policies for layer in policy.layers(draws(policy), size))
        erased = self.erasing.boxes(draws(self.erasing), size) if self.erasing else None
        return Augmentation(layers=layers, erased=erased)


def augment(images: Tensor, layers: Sequence[Layer]) -> Tensor:
    """Copies of the images, uint8 (N, 3, height, width), in the same memory format, changed by one layer after the
    other."""
    plans = [sorted_layer(layer, *images.shape[-2:]) for layer in layers]
    rows, moves = np.arange(len(images)), []
    for plan in plans:
        moves.append(rows[plan.order])
        rows = np.argsort(plan.order)
    arrays = [array for plan in plans for array in (plan.tables, plan.weights, plan.matrices)]
    sent = to_device([*moves, rows, *arrays], images.device)
    for i, plan in enumerate(plans):
        images = select(images, sent[i])
        apply_sorted(images, plan, *sent[len(plans) + 1 + 3 * i :][:3])
    return select(images, sent[len(plans)])


def erase(images: Tensor, boxes: Boxes, mean: Sequence[float] = (0.0, 0.0, 0.0)) -> None:
    """Give the boxes of images the mean colour in place, by a number of operations that does not depend on the number
    of boxes. mean: RGB from 0 to 1, for uint8; it is 0 in normalised images."""
    if not len(boxes):
        return
    height, width = images.shape[-2:]
    limits = np.zeros((2, 2, len(images), 1), dtype=np.int32)  # start and end; y and x; image
    rows, starts, sides = boxes[:, 0], boxes[:, 1:3].T, boxes[:, 3:5].T
    limits[:, :, rows, 0] = starts, starts + sides
    ((start, end),) = to_device([limits], images.device)
    places = torch.arange(max(height, width), device=images.device)
    inside_y, inside_x = (places >= start) & (places < end)
    erased = inside_y[:, None, :height, None] & inside_x[:, None, None, :width]
    if images.is_floating_point():
        images.masked_fill_(erased, 0)
        return
    for channel, colour in zip(images.split(1, dim=1), mean, strict=True):
        channel.masked_fill_(erased, min(255, max(0, round(255 * colour))))
