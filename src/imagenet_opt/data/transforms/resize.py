"""Makes images of one size of ragged crops: antialiased resize, flip, normalise and cast, for a whole batch."""

from dataclasses import dataclass
from functools import cache
from math import ceil

import torch
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
    pixels: Tensor, heights: Tensor, widths: Tensor, offsets: Tensor, flips: Tensor, *, size: int, format: ImageFormat
) -> Tensor:
    """`batch.resize_ragged` in plain torch: for CPUs, and as the reference for the kernel."""
    images = torch.empty((len(heights), size, size, 3)).permute(0, 3, 1, 2)
    rows = zip(heights.tolist(), widths.tolist(), offsets.tolist(), flips.tolist(), strict=True)
    for image, (height, width, start, flip) in zip(images, rows, strict=True):
        crop_CHW = pixels[start : start + height * width * 3].view(height, width, 3).permute(2, 0, 1).float()
        image.copy_(resize(crop_CHW, size, flip, format.interpolation))
    return images.add_(0.5).to(torch.uint8) if format.dtype == torch.uint8 else normalize(images, format)


def resize(crop_CHW: Tensor, size: int, flip: bool, interpolation: str) -> Tensor:
    """(3, size, size) in the crop's dtype, 0 to 255; uint8 is rounded.

    interpolation: "bilinear" and "bicubic" are antialiased: their filters are as wide as the reduction, as in
    torchvision's resize with antialias=True and in Pillow. "area": the mean of the part of the crop that a pixel
    covers, as OpenCV's INTER_AREA makes reductions.
    """
    if interpolation == "area":
        resized = _area(crop_CHW, size)
    else:
        resized = interpolate(crop_CHW[None], size=(size, size), mode=interpolation, antialias=True)[0]
        if interpolation == "bicubic":
            resized.clamp_(0, 255)  # because some weights of the filter are negative
    return resized.flip(-1) if flip else resized


def _area(crop_CHW: Tensor, size: int) -> Tensor:
    _, height, width = crop_CHW.shape
    by_row = _means(crop_CHW.permute(1, 2, 0).reshape(height, width * 3), size).view(size, width, 3)
    by_column = _means(by_row.transpose(0, 1).reshape(width, size * 3), size).view(size, size, 3)
    images = by_column.permute(2, 1, 0)
    return (images if crop_CHW.is_floating_point() else images.round()).to(crop_CHW.dtype)


def _means(rows: Tensor, num: int) -> Tensor:
    """Means over `num` equal intervals of the rows: (H, W) -> float32 (num, W). An interval may end inside a row."""
    height = len(rows)
    ends = torch.arange(num + 1) * (height / num)
    first, means = ends[:-1].long(), torch.zeros(num, rows.shape[1])
    for step in range(ceil(height / num) + 1):
        row = first + step
        share = (torch.minimum(ends[1:], row + 1) - torch.maximum(ends[:-1], row)).clamp(min=0) * (num / height)
        means.addcmul_(rows[row.clamp(max=height - 1)].float(), share[:, None])
    return means


def normalize(images_NCHW: Tensor, format: ImageFormat) -> Tensor:
    """Pixels from 0 to 255 as images in the format's dtype, computed in float32 with one multiply-add per pixel."""
    factor, offset = _constants(images_NCHW.device, format.mean, format.std)
    return torch.addcmul(offset, images_NCHW, factor).to(format.dtype)


@cache
def _constants(device: torch.device, mean: RGB, std: RGB) -> tuple[Tensor, Tensor]:
    means, deviations = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
    return (1 / (255 * deviations)).to(device), (-means / deviations).to(device)
