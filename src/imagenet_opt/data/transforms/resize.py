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

from imagenet_opt.data.batch_memory import TensorFields
from imagenet_opt.data.randomness import key_of

Size = int | tuple[int, int]
"""Pixels of a side of square images, or height and width in pixels."""
RGB = tuple[float, float, float]
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
FILTERS = ("bilinear", "bicubic", "area")
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


@dataclass
class RaggedCrops(TensorFields):
    """Crops of different sizes, one after the other in one buffer, to be resized on the device.

    pixels: uint8 (num_bytes,); crop i is pixels[offsets[i]:] as (heights[i], widths[i], 3). heights, widths: int32
    (N,); offsets: int64 (N,); flips: bool (N,), True to mirror the crop horizontally. windows: float32 (N, 4), top,
    left, height and width of the part of the crop that becomes the image, in pixels of the crop.
    """

    pixels: Tensor
    heights: Tensor
    widths: Tensor
    offsets: Tensor
    flips: Tensor
    windows: Tensor

    def __len__(self) -> int:
        return len(self.heights)


def height_width(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def filter_of(interpolation: str, place: tuple[int, int]) -> str:
    """The filter of a batch: "random" is bilinear or bicubic. place: epoch and step."""
    return ("bilinear", "bicubic")[key_of(0, *place) % 2] if interpolation == "random" else interpolation


def resize_torch(crops: RaggedCrops, *, size: Size, format: ImageFormat) -> Tensor:
    """`batch.resize_ragged` image by image: for CPUs, and as the reference for the kernel."""
    images = torch.empty((len(crops), *height_width(size), 3)).permute(0, 3, 1, 2)
    facts = (crops.heights, crops.widths, crops.offsets, crops.flips, crops.windows)
    rows = zip(*(each.tolist() for each in facts), strict=True)
    for image, (height, width, start, flip, window) in zip(images, rows, strict=True):
        crop_CHW = crops.pixels[start : start + height * width * 3].view(height, width, 3).permute(2, 0, 1).float()
        image.copy_(resize(crop_CHW, size, flip, format.interpolation, window))
    return images.add_(0.5).to(torch.uint8) if format.dtype == torch.uint8 else normalize(images, format)


def resize(crop_CHW: Tensor, size: Size, flip: bool, interpolation: str, window: Sequence[float]) -> Tensor:
    """(3, height, width) of `size`, in the dtype of the crop, 0 to 255; uint8 is rounded.

    interpolation: "bilinear" and "bicubic" are antialiased: their filters are as wide as the reduction, as in
    torchvision's resize with antialias=True and in Pillow. "area": the mean of the part of the crop that a pixel
    covers, as OpenCV's INTER_AREA makes reductions. window: top, left, height and width of the part of the crop that
    becomes the image, in pixels; filters use the pixels around the window too.
    """
    sides = height_width(size)
    if interpolation == "area":
        resized = _area(crop_CHW, sides, window)
    elif tuple(window) == (0, 0, *crop_CHW.shape[1:]):
        resized = interpolate(crop_CHW[None], size=sides, mode=interpolation, antialias=True)[0]
    else:
        resized = _part(crop_CHW, sides, interpolation, window)
    if interpolation == "bicubic":
        resized.clamp_(0, 255)  # because some weights of the filter are negative
    return resized.flip(-1) if flip else resized


def _part(crop_CHW: Tensor, sides: tuple[int, int], interpolation: str, window: Sequence[float]) -> Tensor:
    """By Pillow, which has floats of one channel only; torch's `interpolate` knows no part of an image."""
    top, left, height, width = window
    _, most_height, most_width = crop_CHW.shape
    box, kind = (left, top, min(most_width, left + width), min(most_height, top + height)), interpolation.upper()
    images = crop_CHW.unbind() if crop_CHW.is_floating_point() else crop_CHW.permute(1, 2, 0)[None].unbind()
    resized = [Image.fromarray(each.numpy()).resize(sides[::-1], Image.Resampling[kind], box) for each in images]
    parts = torch.from_numpy(np.stack([np.asarray(each) for each in resized]))
    return parts if crop_CHW.is_floating_point() else parts[0].permute(2, 0, 1)


def _area(crop_CHW: Tensor, sides: tuple[int, int], window: Sequence[float]) -> Tensor:
    top, left, height, width = window
    by_row = _means(crop_CHW.movedim(1, 0), sides[0], top, height)
    images = _means(by_row.movedim(2, 0), sides[1], left, width).permute(2, 1, 0)
    return (images if crop_CHW.is_floating_point() else images.round()).to(crop_CHW.dtype)


def _means(rows: Tensor, num: int, start: float, length: float) -> Tensor:
    """Means over `num` equal intervals of the rows from `start` on: (L, A, B) -> float32 (num, A, B). An interval may
    end inside a row."""
    ends = start + torch.arange(num + 1) * (length / num)
    first, means = ends[:-1].long(), torch.zeros(num, *rows.shape[1:])
    for step in range(ceil(length / num) + 1):
        row = first + step
        share = (torch.minimum(ends[1:], row + 1) - torch.maximum(ends[:-1], row)).clamp(min=0) * (num / length)
        means.addcmul_(rows[row.clamp(max=len(rows) - 1)].float(), share[:, None, None])
    return means


def normalize(images_NCHW: Tensor, format: ImageFormat) -> Tensor:
    """Pixels from 0 to 255 as images in the format's dtype, computed in float32 with one multiply-add per pixel."""
    factor, offset = _constants(images_NCHW.device, format.mean, format.std)
    return torch.addcmul(offset, images_NCHW, factor).to(format.dtype)


@cache
def _constants(device: torch.device, mean: RGB, std: RGB) -> tuple[Tensor, Tensor]:
    means, deviations = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
    return (1 / (255 * deviations)).to(device), (-means / deviations).to(device)
