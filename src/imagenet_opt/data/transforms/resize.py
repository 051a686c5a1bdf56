"""Makes images of one size of ragged crops: antialiased resize, flip, normalise and cast, for a whole batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

RGB = tuple[float, float, float]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's pixels, for RGB from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """dtype: floating images are normalised by mean and std, for RGB from 0 to 1; uint8 keeps the pixels, 0 to 255.
    interpolation: filter of the resize, see `resize`."""

    dtype: torch.dtype = torch.float32
    interpolation: str = "bilinear"
    mean: RGB = MEAN
    std: RGB = STD


def resize_torch(
    pixels: Tensor,
    heights: Tensor,
    widths: Tensor,
    offsets: Tensor,
    flips: Tensor,
    windows: Tensor,
    *,
    size: int,
    format: ImageFormat,
) -> Tensor:
    """`batch.resize_ragged` in plain torch: for CPUs, and as the reference for the kernel."""
    images = torch.empty((len(heights), size, size, 3)).permute(0, 3, 1, 2)
    rows = zip(*(facts.tolist() for facts in (heights, widths, offsets, flips, windows)), strict=True)
    for image, (height, width, start, flip, window) in zip(images, rows, strict=True):
        crop_CHW = pixels[start : start + height * width * 3].view(height, width, 3).permute(2, 0, 1).float()
        image.copy_(resize(crop_CHW, size, flip, format.interpolation, window))
    return images.add_(0.5).to(torch.uint8) if format.dtype == torch.uint8 else normalize(images, format)


def resize(crop_CHW: Tensor, size: int, flip: bool, interpolation: str, window: Sequence[float]) -> Tensor:
    """(3, size, size) in the crop's dtype, 0 to 255; uint8 is rounded.

    interpolation: "bilinear" and "bicubic" are antialiased: their filters are as wide as the reduction, as in
    torchvision's resize with antialias=True and in Pillow. "area": the mean of the part of the crop that a pixel
    covers, as OpenCV's INTER_AREA makes reductions. window: top, left, height and width of the part of the crop that
    becomes the image, in pixels; filters use the pixels around the window too.
    """
    if interpolation == "area":
        resized = _windowed(crop_CHW, size, interpolation, window)
    elif tuple(window) == (0, 0, *crop_CHW.shape[1:]):
        resized = interpolate(crop_CHW[None], size=(size, size), mode=interpolation, antialias=True)[0]
        if interpolation == "bicubic":
            resized.clamp_(0, 255)  # because some weights of the filter are negative
    elif crop_CHW.is_floating_point():
        resized = _windowed(crop_CHW, size, interpolation, window)
    else:
        resized = _windowed_by_pillow(crop_CHW, size, interpolation, window)
    return resized.flip(-1) if flip else resized


def _windowed(crop_CHW: Tensor, size: int, interpolation: str, window: Sequence[float]) -> Tensor:
    top, left, height, width = window
    image = crop_CHW
    for axis, start, length in ((1, top, height), (2, left, width)):
        rows = image.movedim(axis, 0)
        first, weights = _weights(len(rows), size, start, length, interpolation)
        means = torch.zeros(size, *rows.shape[1:])
        for step, weight in enumerate(weights):
            means.addcmul_(rows[(first + step).clamp(max=len(rows) - 1)].float(), weight[:, None, None])
        image = means.movedim(0, axis)
    if interpolation == "bicubic":
        image.clamp_(0, 255)
    return (image if crop_CHW.is_floating_point() else image.round()).to(crop_CHW.dtype)


def _windowed_by_pillow(crop_CHW: Tensor, size: int, interpolation: str, window: Sequence[float]) -> Tensor:
    """For uint8: six times as fast as `_windowed`, and rounded after each axis, as torchvision does it."""
    top, left, height, width = window
    _, most_height, most_width = crop_CHW.shape
    box = (left, top, min(most_width, left + width), min(most_height, top + height))
    image = Image.fromarray(crop_CHW.permute(1, 2, 0).numpy())
    resized = image.resize((size, size), Image.Resampling[interpolation.upper()], box)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def _weights(num_rows: int, num: int, start: float, length: float, interpolation: str) -> tuple[Tensor, list[Tensor]]:
    """For each of `num` equal intervals from `start` on: the first row that it uses, and its weights of this row and of
    the following ones. The filters of `resize_kernel`."""
    scale = length / num
    if interpolation == "area":
        ends = start + torch.arange(num + 1) * scale
        first = ends[:-1].long()
        rows = [first + step for step in range(ceil(scale) + 1)]
        last = [torch.minimum(ends[1:], row + 1) for row in rows]
        shares = [end - torch.maximum(ends[:-1], row) for end, row in zip(last, rows, strict=True)]
        return first, [share.clamp(min=0) * (num / length) for share in shares]
    width = max(scale, 1.0)
    reach = width * (2 if interpolation == "bicubic" else 1)
    centres = start + (torch.arange(num, dtype=torch.float64) + 0.5) * scale
    first = (centres - reach + 0.5).clamp(min=0).long()
    row = first + torch.arange(int(2 * reach) + 2)[:, None]
    far = (row + 0.5 - centres).abs() / width
    if interpolation == "bicubic":
        near, outer = (1.5 * far - 2.5) * far * far + 1, ((-0.5 * far + 2.5) * far - 4) * far + 2
        weights = torch.where(far < 1, near, torch.where(far < 2, outer, 0.0))
    else:
        weights = (1 - far).clamp(min=0)
    weights[row >= num_rows] = 0
    return first, list((weights / weights.sum(0)).float())


def normalize(images_NCHW: Tensor, format: ImageFormat) -> Tensor:
    """Pixels from 0 to 255 as images in the format's dtype, computed in float32 with one multiply-add per pixel."""
    factor, offset = _constants(images_NCHW.device, format.mean, format.std)
    return torch.addcmul(offset, images_NCHW, factor).to(format.dtype)


@cache
def _constants(device: torch.device, mean: RGB, std: RGB) -> tuple[Tensor, Tensor]:
    means, deviations = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
    return (1 / (255 * deviations)).to(device), (-means / deviations).to(device)
