"""Decodes crops of encoded images, and only the region of the crop if the file allows it.

nvImageCodec decodes a region of ordinary JPEGs without the rest of the image, with the same bits as a whole decode and
a crop. Pillow decodes other files, and JPEGs that nvImageCodec refuses.
"""

import logging
import time
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from imagenet_opt.data.decode.image_file import (
    REFUSED,
    check_size,
    eight_bits,
    exif_orientation,
    no_pixel_limit,
    open_image,
    upright,
)
from imagenet_opt.data.decode.region_codec import Box, Pixels, region_codec
from imagenet_opt.errors import BadSample

log = logging.getLogger(__name__)

SLOW_SECONDS = 5.0
"""CPU time after which an image delays training so much that its name is reported. Our choice."""


@dataclass(frozen=True)
class Opened:
    """An image whose size is known and whose pixels are not decoded yet.

    height, width: after rotation. stream: for decoding with nvImageCodec; None if only Pillow can decode the image.
    orientation: 1 to 8, as in EXIF data; 1 is upright.
    """

    encoded: bytes
    name: str
    height: int
    width: int
    stream: Any = None
    orientation: int = 1


class Decoder:
    """Decodes crops; use one per thread.

    exif_rotation: whether to rotate images by their EXIF data; the usual results on ImageNet are without rotation.
    max_crop_pixels: larger crops are reduced by a whole factor, by averaging. max_pixels: larger images are bad.
    region_decode: False decodes whole images, with the same bits.
    """

    def __init__(
        self, *, exif_rotation: bool, max_crop_pixels: int, max_pixels: int = 10**8, region_decode: bool = True
    ) -> None:
        self.exif_rotation = exif_rotation
        self.max_crop_pixels = max_crop_pixels
        self.max_pixels = max_pixels
        self.region_decode = region_decode
        self._slow: set[str] = set()

    def open(self, encoded: bytes, name: str) -> Opened:
        """Open an image. Raises BadSample, with `name`, if no decoder can open it."""
        if not encoded:
            raise BadSample(f"{name} is empty (0 bytes); restore the file or remove it (data.root)")
        stream = region_codec().parse(encoded)
        try:
            width, height = open_image(encoded).size if stream is None else (stream.width, stream.height)
            check_size(encoded, height, width, self.max_pixels)
        except REFUSED as error:
            raise _bad(name, error) from error
        orientation = exif_orientation(encoded) if self.exif_rotation else 1
        if orientation >= 5:  # a quarter turn
            width, height = height, width
        return Opened(encoded, name, height, width, stream, orientation)

    def crop(self, image: Opened, box: Box) -> Pixels:
        """Pixels of `box`, reduced to at most max_crop_pixels; valid until the next call. Raises BadSample."""
        began = time.thread_time()
        pixels = self._crop(image, box)
        if time.thread_time() - began > SLOW_SECONDS and image.name not in self._slow:
            self._slow.add(image.name)
            log.warning(
                f"{image.name}: decoding takes over {SLOW_SECONDS:.0f} s of CPU time, in each epoch; make the image "
                "smaller or remove the file (data.root)"
            )
        return pixels

    def _crop(self, image: Opened, box: Box) -> Pixels:
        top, left, height, width = box
        large = height * width > self.max_crop_pixels
        large_whole = image.stream is None and image.height * image.width > self.max_crop_pixels
        if (large or large_whole) and image.orientation == 1:
            return _reduced(image, box, self.max_crop_pixels)
        if self.region_decode and image.orientation == 1:
            region = None if image.stream is None else region_codec().decode(image.stream, box)
            if region is not None:
                return region
        crop = decode_whole(image)[top : top + height, left : left + width]
        if large:
            return _means(Image.fromarray(crop), self.max_crop_pixels)
        return crop if image.orientation == 1 else np.ascontiguousarray(crop)  # torch takes no negative strides


def decode_whole(image: Opened) -> Pixels:
    """All pixels, upright. Raises BadSample, also if the header states another size."""
    pixels = None if image.stream is None else region_codec().decode_whole(image.stream)
    if pixels is None:
        pixels = _decoded_by_pillow(image.encoded, image.name)
    pixels = upright(pixels, image.orientation)
    height, width, _ = pixels.shape
    if (height, width) != (image.height, image.width):
        sizes = f"the image has {width} x {height} pixels, but its header states {image.width} x {image.height}"
        raise _bad(image.name, ValueError(sizes))
    return pixels


def _decoded_by_pillow(encoded: bytes, name: str) -> Pixels:
    """All pixels. 16 bits per channel become 8; of an animation the first frame counts. Raises BadSample."""
    try:
        image = open_image(encoded)
        return np.array(image if image.mode == "RGB" else eight_bits(image).convert("RGB"))
    except REFUSED as error:
        raise _bad(name, error) from error


def _reduced(image: Opened, box: Box, max_pixels: int) -> Pixels:
    """The crop reduced by a whole factor: JPEGs by decoding fewer frequencies, then by averaging squares of pixels."""
    top, left, height, width = box
    factor = ceil(sqrt(height * width / max_pixels))
    try:
        picture = open_image(image.encoded)
        picture.draft("RGB", (max(1, image.width // factor), max(1, image.height // factor)))
        first = left * picture.width // image.width, top * picture.height // image.height
        right = _ceil_div((left + width) * picture.width, image.width)
        bottom = _ceil_div((top + height) * picture.height, image.height)
        with no_pixel_limit():
            crop = picture.crop((*first, right, bottom))
        return _means(eight_bits(crop).convert("RGB"), max_pixels)
    except REFUSED as error:
        raise _bad(image.name, error) from error


def _ceil_div(number: int, divisor: int) -> int:
    """`number / divisor`, rounded up. Floats would give 501 for a quotient of 500.00000000000006 instead of 500."""
    return -(-number // divisor)


def _means(crop: Image.Image, max_pixels: int) -> Pixels:
    """Means of squares of pixels. The squares are the smallest that give at most `max_pixels` means."""
    factor = 1
    while _ceil_div(crop.width, factor) * _ceil_div(crop.height, factor) > max(1, max_pixels):
        factor += 1
    return np.array(crop.reduce(factor))  # a copy, because torch needs writable arrays


def _bad(name: str, error: Exception) -> BadSample:
    reason = "no decoder knows this file format" if isinstance(error, UnidentifiedImageError) else error
    return BadSample(f"cannot decode {name}: {reason}; replace the file or remove it (data.root)")
