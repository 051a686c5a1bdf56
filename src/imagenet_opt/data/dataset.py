"""From a batch key to a batch: what a loader worker does."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info
from torchvision.transforms.v2.functional import horizontal_flip, resized_crop

from imagenet_opt.data.batch import Batch
from imagenet_opt.data.crop import RANDOM_CROP_DRAWS, Crops, center_crops, random_crops
from imagenet_opt.data.decode import decode
from imagenet_opt.data.keys import BatchKey
from imagenet_opt.data.order import Draw, EvalOrder, TrainOrder
from imagenet_opt.data.randomness import key_of, uniform
from imagenet_opt.data.store import Store

Sizes = NDArray[np.int64]
CropPlan = Callable[[Draw, Sizes, Sizes], tuple[Crops, NDArray[np.bool_]]]
"""(draw, image heights, image widths) -> crop boxes, and which images are flipped."""


class BatchDataset(Dataset[Batch]):
    """Maps a key to a whole batch, so that a loader item is a batch and the order lives in one place."""

    def __init__(
        self, *, store: Store, labels: NDArray[np.int32], order: TrainOrder | EvalOrder, crop_plan: CropPlan
    ) -> None:
        self.store = store
        self.labels = labels
        self.order = order
        self.crop_plan = crop_plan

    def __getitem__(self, key: BatchKey) -> Batch:
        draw = self.order.draw(key.epoch, key.step)
        encoded = self.store.read_many(draw.indices)
        pixels = [decode(e, self.store.name(i)) for e, i in zip(encoded, draw.indices.tolist(), strict=True)]
        heights = np.array([image.shape[1] for image in pixels])
        widths = np.array([image.shape[2] for image in pixels])
        crops, flips = self.crop_plan(draw, heights, widths)
        images = _empty_images(len(pixels), key.image_size)
        for row, image in enumerate(pixels):
            box = [int(side[row]) for side in crops]
            resized = resized_crop(image, *box, size=[key.image_size, key.image_size], antialias=True)
            images[row] = horizontal_flip(resized) if flips[row] else resized
        return Batch(
            images=images,
            labels=torch.from_numpy(self.labels[draw.indices].astype(np.int64)),
            indices=torch.from_numpy(draw.indices),
            valid=torch.arange(len(pixels)) < draw.num_valid,
            key=key,
        )


def train_crops(*, seed: int, scale: tuple[float, float]) -> CropPlan:
    """Random crops and flips, each a function of (seed, pass, sample index)."""

    def plan(draw: Draw, heights: Sizes, widths: Sizes) -> tuple[Crops, NDArray[np.bool_]]:
        draws = np.empty((len(heights), RANDOM_CROP_DRAWS + 1))
        for one_pass in np.unique(draw.passes):
            chosen = draw.passes == one_pass
            key = key_of(seed, int(one_pass))
            draws[chosen] = uniform(key, draw.indices[chosen], draws.shape[1])
        return random_crops(heights, widths, draws[:, :-1], scale=scale), draws[:, -1] < 0.5

    return plan


def eval_crops(*, crop_ratio: float) -> CropPlan:
    """Centred crops, no flips."""

    def plan(draw: Draw, heights: Sizes, widths: Sizes) -> tuple[Crops, NDArray[np.bool_]]:
        return center_crops(heights, widths, crop_ratio=crop_ratio), np.zeros(len(heights), dtype=bool)

    return plan


def _empty_images(num_images: int, size: int) -> Tensor:
    """uint8 (N, 3, size, size); in a worker already in the shared memory that hands it over, which saves a copy."""
    shape = (num_images, 3, size, size)
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(num_images * 3 * size * size, device="cpu")
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)
