"""What the network gets of an image's pixels."""

from dataclasses import dataclass

import torch

RGB = tuple[float, float, float]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet: RGB in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """dtype: floating images are normalised by mean and std, of RGB in [0, 1]; uint8 has the pixels, 0 to 255.
    interpolation: filter of the resize, see `resize`."""

    dtype: torch.dtype = torch.float32
    interpolation: str = "bilinear"
    mean: RGB = MEAN
    std: RGB = STD
