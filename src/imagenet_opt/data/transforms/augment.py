"""Augmentation of training batches: drawn by the worker, applied on the device of the batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from imagenet_opt.data.randomness import sample_uniform
from imagenet_opt.data.transforms.augment_ops import Layer, apply_sorted, select, sorted_layer, to_device
from imagenet_opt.data.transforms.augment_policy import Policy
from imagenet_opt.data.transforms.random_erasing import Boxes, RandomErasing


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
    """Copies of the images, uint8 (N, 3, size, size), in the same memory format, changed by one layer after the
    other."""
    plans = [sorted_layer(layer, images.shape[-1]) for layer in layers]
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
