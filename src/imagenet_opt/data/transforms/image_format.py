"""Format of the images that the network gets, and normalising to it."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

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


def normalize(images_NCHW: Tensor, format: ImageFormat) -> Tensor:
    """Pixels from 0 to 255 as images in the format's dtype, computed in float32 with one multiply-add per pixel."""
    factor, offset = _constants(images_NCHW.device, format.mean, format.std)
    return torch.addcmul(offset, images_NCHW, factor).to(format.dtype)


@cache
def _constants(device: torch.device, mean: RGB, std: RGB) -> tuple[Tensor, Tensor]:
    means, deviations = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
    return (1 / (255 * deviations)).to(device), (-means / deviations).to(device)
