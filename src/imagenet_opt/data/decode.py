"""JPEG and friends to pixels."""

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms.v2.functional import to_dtype

from imagenet_opt.errors import BadSample


def decode(encoded: bytes, name: str) -> Tensor:
    """Pixels of an encoded image: uint8 (3, height, width), RGB; torchvision first, Pillow for what it refuses.

    16 bits a channel become 8; of an animation the first frame counts.

    Raises BadSample, with `name`, for what neither opens.
    """
    try:
        found = decode_image(torch.frombuffer(bytearray(encoded), dtype=torch.uint8), ImageReadMode.RGB)
        pixels: Tensor = to_dtype(found if found.dim() == 3 else found[0], torch.uint8, scale=True)
        return pixels
    except (RuntimeError, ValueError):
        pass
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except Exception as error:
        raise BadSample(f"{name} is no image that can be decoded; replace the file or remove it (data.root)") from error
