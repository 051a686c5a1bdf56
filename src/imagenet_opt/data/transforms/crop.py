"""Crop boxes for whole batches, in source pixels."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.order import SampleIds
from imagenet_opt.data.randomness import sample_uniform

Sizes = NDArray[np.int64]

_TRIES = 10
RANDOM_CROP_DRAWS = 4 * _TRIES
_RATIO = (3 / 4, 4 / 3)
_REACH = 2
"""Output pixels that the widest filter, the bicubic one, reaches beyond a window."""


class CropBoxes(NamedTuple):
    """Boxes within their images, in pixels: int64 (batch_size,) each. windows: float64 (batch_size, 4), top, left,
    height and width of the part of each box that becomes the image, in pixels of the box."""

    tops: Sizes
    lefts: Sizes
    heights: Sizes
    widths: Sizes
    windows: NDArray[np.float64]


CropPlan = Callable[[SampleIds, Sizes, Sizes, int], tuple[CropBoxes, NDArray[np.bool_]]]
"""(samples, image heights, image widths, size of the resized images) -> crops, and whether each image is flipped."""


def train_crops(
    draw: SampleIds,
    heights: Sizes,
    widths: Sizes,
    size: int,
    *,
    seed: int,
    scale: tuple[float, float],
    hflip: float = 0.5,
) -> tuple[CropBoxes, NDArray[np.bool_]]:
    """Random crops and flips, as functions of (seed, pass, sample index). A CropPlan, but for the keywords. hflip:
    share of the images that are flipped."""
    draws = sample_uniform(seed, draw.pass_ids, draw.indices, RANDOM_CROP_DRAWS + 1)
    return random_crops(heights, widths, draws[:, :-1], scale=scale), draws[:, -1] < hflip


def random_crops(heights: Sizes, widths: Sizes, draws: NDArray[np.float64], *, scale: tuple[float, float]) -> CropBoxes:
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
    tops, lefts, crop_heights, crop_widths = (np.where(has_fit, tried, fallback) for tried, fallback in pairs)
    windows = np.stack([0 * tops, 0 * lefts, crop_heights, crop_widths], axis=1).astype(np.float64)
    return CropBoxes(tops, lefts, crop_heights, crop_widths, windows)


def eval_crops(
    draw: SampleIds, heights: Sizes, widths: Sizes, size: int, *, crop_ratio: float, squash: bool = False
) -> tuple[CropBoxes, NDArray[np.bool_]]:
    """Centred crops without flips. A CropPlan, but for the keywords.

    Windows of the images that a resize of the shorter side to size / crop_ratio, rounded down, and then a centred crop
    of size x size show; in boxes with all pixels that the filters use. Sources: Resize and CenterCrop of torchvision,
    whose roundings are repeated here; timm's transforms_imagenet_eval for the rounding down, and for `squash`: both
    sides become size / crop_ratio.
    """
    shorter, resized = np.minimum(heights, widths), int(size / crop_ratio + 1e-6)
    tops, box_heights, top, height = _centred(heights, heights if squash else shorter, resized, size)
    lefts, box_widths, left, width = _centred(widths, widths if squash else shorter, resized, size)
    windows = np.stack([top, left, height, width], axis=1)
    return CropBoxes(tops, lefts, box_heights, box_widths, windows), np.zeros(len(heights), dtype=bool)


def _centred(
    sides: Sizes, shorter: Sizes, resized: int, size: int
) -> tuple[Sizes, Sizes, NDArray[np.float64], NDArray[np.float64]]:
    """Along one axis: start and length of the box in the image, and of the window in the box."""
    resized_sides = resized * sides // shorter
    scale = sides / resized_sides
    start, length = np.rint((resized_sides - size) / 2) * scale, size * scale
    reach = _REACH * np.maximum(scale, 1)
    first = np.maximum(0, np.floor(start - reach)).astype(np.int64)
    last = np.minimum(sides, np.ceil(start + length + reach)).astype(np.int64)
    return first, last - first, start - first, length


def _nearest_ratio(heights: Sizes, widths: Sizes) -> tuple[Sizes, ...]:
    """Largest centred boxes whose width/height is the nearest to the image's within `_RATIO`."""
    aspect = widths / heights
    box_heights = np.where(aspect < _RATIO[0], np.round(widths / _RATIO[0]), heights)
    box_widths = np.where(aspect > _RATIO[1], np.round(heights * _RATIO[1]), widths)
    box_heights, box_widths = (np.maximum(1, side).astype(np.int64) for side in (box_heights, box_widths))
    box_heights, box_widths = np.minimum(box_heights, heights), np.minimum(box_widths, widths)
    return (heights - box_heights) // 2, (widths - box_widths) // 2, box_heights, box_widths
