"""Random erasing: fills a box of some images with the mean colour or with noise."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imagenet_opt.data.transforms.augment_ops import to_device

_TRIES = 10
_AREA = (0.02, 1 / 3)
_RATIO = (0.3, 1 / 0.3)


class Erased(NamedTuple):
    """Boxes to erase, at most one for each image.

    boxes: int64 (num_boxes, 5): row in the batch; top, left, height, width in pixels. seed: of the noise.
    """

    boxes: NDArray[np.int64]
    mode: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class RandomErasing:
    """Erases one box of an image with `probability`, as timm does (timm.data.random_erasing; arXiv 1708.04896).

    The box has 1/50 to 1/3 of the area, and a height of 0.3 to 3.3 times its width. The first of ten tries that fits
    counts; if no try fits, the image stays. mode: see LoaderOptions.random_erasing_mode.
    """

    probability: float
    mode: str = "const"

    stream: ClassVar[int] = 3
    num_draws: ClassVar[int] = 2 + 4 * _TRIES

    def erased(self, draws: NDArray[np.float64], size: int) -> Erased:
        """draws: float64 (N, num_draws) in [0, 1). size: pixels of a side."""
        u = draws[:, 2:].reshape(len(draws), _TRIES, 4)
        area = size**2 * (_AREA[0] + u[..., 0] * (_AREA[1] - _AREA[0]))
        ratio = np.exp(np.log(_RATIO[0]) + u[..., 1] * (np.log(_RATIO[1]) - np.log(_RATIO[0])))
        sides = np.round(np.sqrt(np.stack([area * ratio, area / ratio]))).astype(np.int64)
        fits = ((sides < size) & (sides > 0)).all(axis=0)
        first, rows = fits.argmax(axis=1), np.arange(len(u))
        heights, widths = sides[:, rows, first]
        tops = (u[rows, first, 2] * (size - heights + 1)).astype(np.int64)
        lefts = (u[rows, first, 3] * (size - widths + 1)).astype(np.int64)
        boxes = np.stack([rows, tops, lefts, heights, widths], axis=1)
        chosen = fits.any(axis=1) & (draws[:, 0] < self.probability)
        return Erased(boxes[chosen], self.mode, int(draws[0, 1] * 2**53))


def erase(images: Tensor, erased: Erased) -> None:
    """Erase the boxes of normalised images in place, by a number of operations that does not depend on the number of
    boxes. One generator draws the noise of a batch, from the seed of its first image, and depends on the kind
    of device."""
    if not len(erased.boxes):
        return
    height, width = images.shape[-2:]
    limits = np.zeros((2, 2, len(images), 1), dtype=np.int32)  # start and end; y and x; image
    rows, starts, sides = erased.boxes[:, 0], erased.boxes[:, 1:3].T, erased.boxes[:, 3:5].T
    limits[:, :, rows, 0] = starts, starts + sides
    ((start, end),) = to_device([limits], images.device)
    places = torch.arange(max(height, width), device=images.device)
    inside_y, inside_x = (places >= start) & (places < end)
    mask = inside_y[:, None, :height, None] & inside_x[:, None, None, :width]
    if erased.mode == "const":
        images.masked_fill_(mask, 0)
    else:
        generator = torch.Generator(images.device).manual_seed(erased.seed)
        torch.where(mask, torch.empty_like(images).normal_(generator=generator), images, out=images)
