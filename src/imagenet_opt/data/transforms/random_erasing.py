"""Random erasing: fills a box of some images with the mean colour or with noise."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_TRIES = 10
_AREA = (0.02, 1 / 3)
_RATIO = (0.3, 1 / 0.3)


class Erased(NamedTuple):
    """Boxes to erase, at most one for each image.

    boxes: int64 (num_boxes, 6): row in the batch; top, left, height, width in pixels; seed of the noise.
    """

    boxes: NDArray[np.int64]
    mode: str


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
        seeds = (draws[:, 1] * 2**53).astype(np.int64)
        boxes = np.stack([rows, tops, lefts, heights, widths, seeds], axis=1)
        return Erased(boxes[fits.any(axis=1) & (draws[:, 0] < self.probability)], self.mode)


def erase(images: Tensor, erased: Erased) -> None:
    """Erase the boxes of normalised images in place. The noise of a box depends on its seed and on the kind of
    device."""
    generator = torch.Generator(images.device)
    for row, top, left, height, width, seed in erased.boxes.tolist():
        box = images[row, :, top : top + height, left : left + width]
        if erased.mode == "pixel":
            box.normal_(generator=generator.manual_seed(seed))
        else:
            box.zero_()
