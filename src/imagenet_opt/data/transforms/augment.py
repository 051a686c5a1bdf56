"""Augmentation of training batches: drawn by the worker, applied on the device of the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from imagenet_opt.data.randomness import sample_uniform
from imagenet_opt.data.transforms.augment_layer import Layer, joined_layer
from imagenet_opt.data.transforms.augment_ops import apply_layer
from imagenet_opt.data.transforms.augment_policy import ColorJitter, Policy, parse_policy
from imagenet_opt.data.transforms.random_erasing import Erased, RandomErasing, joined_boxes


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What happens to the images of one batch; numbers of the host. The layers come before normalising, erasing
    after."""

    layers: tuple[Layer, ...]
    erased: Erased | None

    @classmethod
    def of_parts(cls, parts: "Sequence[Augmentation]", sizes: Sequence[int]) -> "Augmentation":
        """That of a batch that came in parts of `sizes` images."""
        layers = tuple(map(joined_layer, zip(*(part.layers for part in parts), strict=True)))
        boxes = [part.erased for part in parts if part.erased is not None]
        return cls(layers=layers, erased=joined_boxes(boxes, sizes) if boxes else None)


@dataclass(frozen=True, kw_only=True)
class Augmenter:
    """Draws the augmentation of batches; that of an image is a function of (seed, pass, sample index)."""

    seed: int
    policies: tuple[Policy, ...]
    erasing: RandomErasing | None

    def draw(self, indices: NDArray[np.int64], pass_ids: NDArray[np.int64], size: int) -> Augmentation:
        """size: pixels of a side of the images."""

        def draws(source: Policy | RandomErasing) -> NDArray[np.float64]:
            return sample_uniform(self.seed, pass_ids, indices, source.num_draws, stream=source.stream)

        layers = tuple(layer for policy in self.policies for layer in policy.layers(draws(policy), size))
        return Augmentation(
            layers=layers, erased=self.erasing.erased(draws(self.erasing), size) if self.erasing else None
        )


def build_augmenter(
    *, seed: int, augment: str | None, color_jitter: float, random_erasing: float, random_erasing_mode: str
) -> Augmenter | None:
    """The augmenter of the keys of LoaderOptions; None where nothing is augmented."""
    policy = parse_policy(augment)
    policies = (*((policy,) if policy else ()), *((ColorJitter(color_jitter),) if color_jitter else ()))
    erasing = RandomErasing(probability=random_erasing, mode=random_erasing_mode) if random_erasing else None
    return Augmenter(seed=seed, policies=policies, erasing=erasing) if policies or erasing else None


def augment(images_NCHW: Tensor, layers: tuple[Layer, ...]) -> Tensor:
    """Augmented copies of the images, uint8 (N, 3, size, size)."""
    augmented = images_NCHW.clone()
    for layer in layers:
        apply_layer(augmented, layer)
    return augmented
