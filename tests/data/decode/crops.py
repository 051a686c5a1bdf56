"""Crops of encoded images."""

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_image

from imagenet_opt.data.decode.decoder import Decoder

BOX = (7, 5, 20, 31)


def decoding(*, exif_rotation: bool = False, max_crop_pixels: int = 2**22, region_decode: bool = True) -> Decoder:
    return Decoder(exif_rotation=exif_rotation, max_crop_pixels=max_crop_pixels, region_decode=region_decode)


def crop(data: bytes, box: tuple[int, int, int, int] = BOX, **options) -> np.ndarray:
    decoder = decoding(**options)
    return decoder.crop(decoder.open(data, "some.JPEG"), box).copy()


def whole(data: bytes, **options) -> np.ndarray:
    actual = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB, **options)
    return actual.permute(1, 2, 0).numpy()


def part(pixels: np.ndarray, box: tuple[int, int, int, int] = BOX) -> np.ndarray:
    top, left, height, width = box
    return pixels[top : top + height, left : left + width]
