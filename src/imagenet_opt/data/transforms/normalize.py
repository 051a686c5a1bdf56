"""Normalises pixels from 0 to 255 for the network, for the whole batch on the device."""

from functools import cache

import torch
from torch import Tensor

from imagenet_opt.data.transforms.image_format import RGB, ImageFormat


def normalize(images_NCHW: Tensor, format: ImageFormat) -> Tensor:
    """Images in the format's dtype, from float32 with one multiply-add per pixel."""
    factor, offset = _constants(images_NCHW.device, format.mean, format.std)
    return torch.addcmul(offset, images_NCHW, factor).to(format.dtype)


@cache
def _constants(device: torch.device, mean: RGB, std: RGB) -> tuple[Tensor, Tensor]:
    means, deviations = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
    return (1 / (255 * deviations)).to(device), (-means / deviations).to(device)
