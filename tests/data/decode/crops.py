"""Crops of encoded images."""

import io

import numpy as np
from PIL import Image

from imagenet_opt.data.decode.decoder import Decoder

BOX = (7, 5, 20, 31)


def decoding(*, exif_rotation: bool = False, max_crop_pixels: int = 2**22, region_decode: bool = True) -> Decoder:
    return Decoder(exif_rotation=exif_rotation, max_crop_pixels=max_crop_pixels, region_decode=region_decode)


def crop(data: bytes, box: tuple[int, int, int, int] = BOX, **options) -> np.ndarray:
    decoder = decoding(**options)
    return decoder.crop(decoder.open(data, "some.JPEG"), box).copy()


def whole(data: bytes) -> np.ndarray:
    """All pixels, by Pillow."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def part(pixels: np.ndarray, box: tuple[int, int, int, int] = BOX) -> np.ndarray:
    top, left, height, width = box
    return pixels[top : top + height, left : left + width]
