"""JPEG and friends to pixels."""

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image

from imagenet_opt.errors import BadSample


def decode(encoded: bytes, name: str) -> Tensor:
    """Pixels of an encoded image: uint8 (3, height, width), RGB; torchvision first, Pillow for what it refuses.

    Raises BadSample, with `name`, for what neither opens.
    """
    try:
        pixels: Tensor = decode_image(torch.frombuffer(bytearray(encoded), dtype=torch.uint8), ImageReadMode.RGB)
        return pixels
    except (RuntimeError, ValueError):
        pass
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except Exception as error:
        raise BadSample(f"{name} is no image that can be decoded; replace the file or remove it (data.root)") from error
