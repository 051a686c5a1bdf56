"""Crop boxes for whole batches, in source pixels."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_TRIES = 10
RANDOM_CROP_DRAWS = 4 * _TRIES
_RATIO = (3 / 4, 4 / 3)


class Crops(NamedTuple):
    """Boxes within their images, in pixels: int64 (batch_size,) each."""

    tops: NDArray[np.int64]
    lefts: NDArray[np.int64]
    heights: NDArray[np.int64]
    widths: NDArray[np.int64]


def random_crops(
    heights: NDArray[np.int64], widths: NDArray[np.int64], draws: NDArray[np.float64], *, scale: tuple[float, float]
) -> Crops:
    """Inception-style random boxes: the share of the area is uniform in `scale`, width/height log-uniform in `_RATIO`.

    draws: float64 (batch_size, RANDOM_CROP_DRAWS) in [0, 1). The first of ten tries that fits counts; if no try fits,
    the largest centred box of the nearest ratio. Source: torchvision's RandomResizedCrop; arXiv 1409.4842.
    """
    u = draws.reshape(len(draws), _TRIES, 4)
    area = (heights * widths)[:, None] * (scale[0] + u[..., 0] * (scale[1] - scale[0]))
    aspect = np.exp(np.log(_RATIO[0]) + u[..., 1] * (np.log(_RATIO[1]) - np.log(_RATIO[0])))
    tried_widths = np.round(np.sqrt(area * aspect)).astype(np.int64)
    tried_heights = np.round(np.sqrt(area / aspect)).astype(np.int64)
    fits = (tried_widths > 0) & (tried_widths <= widths[:, None])
    fits &= (tried_heights > 0) & (tried_heights <= heights[:, None])
    first = fits.argmax(axis=1)
    rows = np.arange(len(u))
    crop_heights, crop_widths = tried_heights[rows, first], tried_widths[rows, first]
    tops = (u[rows, first, 2] * (heights - crop_heights + 1)).astype(np.int64)
    lefts = (u[rows, first, 3] * (widths - crop_widths + 1)).astype(np.int64)
    has_fit = fits.any(axis=1)
    pairs = zip((tops, lefts, crop_heights, crop_widths), _nearest_ratio(heights, widths), strict=True)
    return Crops(*(np.where(has_fit, tried, fallback) for tried, fallback in pairs))


def center_crops(heights: NDArray[np.int64], widths: NDArray[np.int64], *, crop_ratio: float) -> Crops:
    """Centred squares whose side is `crop_ratio` of the shorter side, as after a resize of the shorter side to
    size / crop_ratio and a centred crop of size x size."""
    sides = np.maximum(1, np.round(np.minimum(heights, widths) * crop_ratio)).astype(np.int64)
    return _centred(heights, widths, sides, sides)


def _nearest_ratio(heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Crops:
    """Largest centred boxes whose width/height is the nearest to the image's within `_RATIO`."""
    aspect = widths / heights
    box_heights = np.where(aspect < _RATIO[0], np.round(widths / _RATIO[0]), heights)
    box_widths = np.where(aspect > _RATIO[1], np.round(heights * _RATIO[1]), widths)
    sizes = np.maximum(1, box_heights).astype(np.int64), np.maximum(1, box_widths).astype(np.int64)
    return _centred(heights, widths, *sizes)


def _centred(
    heights: NDArray[np.int64], widths: NDArray[np.int64], box_heights: NDArray[np.int64], box_widths: NDArray[np.int64]
) -> Crops:
    box_heights, box_widths = np.minimum(box_heights, heights), np.minimum(box_widths, widths)
    return Crops((heights - box_heights) // 2, (widths - box_widths) // 2, box_heights, box_widths)
