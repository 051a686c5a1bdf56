"""Decodes crops of encoded images, and only the region of the crop if the file allows it.

nvImageCodec decodes a region of ordinary JPEGs without the rest of the image, with the same bits as a whole decode and
a crop. Pillow decodes other files, and JPEGs that nvImageCodec refuses. Both raise errors of many types: after one of
nvImageCodec, Pillow decodes the file; one of Pillow becomes BadSample.
"""

import os
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from imagenet_opt.data.decode.image_file import (
    check_size,
    eight_bits,
    exif_orientation,
    is_whole_jpeg,
    no_pixel_limit,
    open_image,
    upright,
)
from imagenet_opt.data.decode.stderr import CapturedStderr, no_stderr
from imagenet_opt.errors import BadSample, Name, first_line, named

Pixels = NDArray[np.uint8]
"""RGB, (height, width, 3)."""
Box = tuple[int, int, int, int]
"""Top, left, height, width, in pixels."""

SLOW_SECONDS = 5.0
"""CPU time after which an image delays training so much that its name is reported. Our choice."""


@dataclass(frozen=True)
class Opened:
    """An image whose size is known and whose pixels are not decoded yet.

    height, width: after rotation. stream: for decoding with nvImageCodec; None if only Pillow can decode the image.
    orientation: 1 to 8, as in EXIF data; 1 is upright.
    """

    encoded: bytes
    name: Name
    height: int
    width: int
    stream: Any = None
    orientation: int = 1


@dataclass(kw_only=True)
class Decoder:
    """Decodes crops; use one per thread.

    exif_rotation: whether to rotate images by their EXIF data; the usual results on ImageNet are without rotation.
    max_crop_pixels: larger crops are reduced by a whole factor, by averaging. max_pixels: larger images are bad.
    region_decode: False decodes whole images, with the same bits. notes: lines about images that are decoded slowly or
    with warnings of the codec, in order.
    """

    exif_rotation: bool
    max_crop_pixels: int
    max_pixels: int = 10**8
    region_decode: bool = True
    notes: list[str] = field(default_factory=list)

    def open(self, encoded: bytes, name: Name) -> Opened:
        """Open an image. Raises BadSample, with `name`, if no decoder can open it."""
        if not encoded:
            raise BadSample(f"{named(name)} is empty (0 bytes); restore the file or remove it (data.root)")
        stream = region_codec().parse(encoded)
        try:
            width, height = open_image(encoded).size if stream is None else (stream.width, stream.height)
            check_size(encoded, height, width, self.max_pixels)
        except Exception as error:
            raise _bad(name, error) from error
        orientation = exif_orientation(encoded) if self.exif_rotation else 1
        if orientation >= 5:  # a quarter turn
            width, height = height, width
        return Opened(encoded, name, height, width, stream, orientation)

    def crop(self, image: Opened, box: Box) -> Pixels:
        """Pixels of `box`, reduced to at most max_crop_pixels; valid until the next call. Raises BadSample."""
        began = time.thread_time()
        try:
            pixels = self._crop(image, box)
        finally:
            warning = region_codec().take_warning()
        if time.thread_time() - began > SLOW_SECONDS:
            self.notes.append(
                f"{named(image.name)}: decoding takes over {SLOW_SECONDS:.0f} s of CPU time, in each epoch; make the "
                "image smaller or remove the file (data.root)"
            )
        if warning:
            remedy = "restore the file or remove it (data.root)"
            self.notes.append(f"{named(image.name)} is decoded, but a part may be damaged: {warning}; {remedy}")
        return pixels

    def take_notes(self) -> list[str]:
        """The notes since the last call."""
        notes, self.notes = self.notes, []
        return notes

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


def _decoded_by_pillow(encoded: bytes, name: Name) -> Pixels:
    """All pixels. 16 bits per channel become 8; of an animation the first frame counts. Raises BadSample."""
    try:
        image = open_image(encoded)
        return np.array(image if image.mode == "RGB" else eight_bits(image).convert("RGB"))
    except Exception as error:
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
    except Exception as error:
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


def _bad(name: Name, error: Exception) -> BadSample:
    unknown = isinstance(error, UnidentifiedImageError)
    reason = "no decoder knows this file format" if unknown else first_line(error)
    return BadSample(f"cannot decode {named(name)}: {reason}; replace the file or remove it (data.root)")


def load_codec() -> Any:
    """nvImageCodec's module. If it is loaded before a fork, workers share its memory. Raises ImportError."""
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    with no_stderr():  # nvImageCodec reports every GPU library that it does not find
        from nvidia import nvimgcodec
    return nvimgcodec


class RegionCodec:
    """nvImageCodec on the CPU, without threads. error: why this process cannot decode with it; "" if it can."""

    def __init__(self) -> None:
        self.decoder: Any = None
        self.error = ""
        try:
            self.library = library = load_codec()
            with no_stderr():
                decoder = library.Decoder(
                    device_id=library.NVIMGCODEC_DEVICE_CPU_ONLY,
                    backends=[library.Backend(library.CPU_ONLY)],
                    max_num_cpu_threads=1,
                )
            self.params = library.DecodeParams(apply_exif_orientation=False, color_spec=library.ColorSpec.SRGB)
            self._stderr = CapturedStderr()
            self.decoder = decoder
        except Exception as error:  # nvImageCodec does not export its type of error
            self.error = first_line(error)
        self.image: Any = None

    def parse(self, encoded: bytes) -> Any:
        """The stream of a complete JPEG in grey or YCbCr; None for all other files, and without a decoder."""
        if self.decoder is None or not is_whole_jpeg(encoded):
            return None
        colour = self.library.ColorSpec
        try:
            stream = self.library.CodeStream(encoded)
            known = stream.codec_name == "jpeg" and stream.color_spec in (colour.SYCC, colour.GRAY)
            has_size = stream.height > 0 and stream.width > 0  # a JPEG may state its height after the pixels
            return stream if known and has_size and stream.precision in (0, 8) else None
        except Exception:  # nvImageCodec does not export its type of error; each property reads the header
            return None

    def decode(self, stream: Any, box: Box) -> Pixels | None:
        """The box's pixels, in memory that the next call reuses; None if the codec gives up."""
        top, left, height, width = box
        right = max(left + width, min(2, stream.width))  # libjpeg smooths the first column alone in another way
        try:
            part = stream.get_sub_code_stream(region=self.library.Region(top, left, top + height, right))
        except Exception:
            return None
        self.image = self._decoded(part, self.image)
        return None if self.image is None else np.asarray(self.image)[:, :width]

    def decode_whole(self, stream: Any) -> Pixels | None:
        """All pixels, in memory of their own, because whole images may be large; None if the codec gives up."""
        image = self._decoded(stream)
        return None if image is None else np.asarray(image)

    def take_warning(self) -> str:
        """What the codec printed since the last call, in one line."""
        return "" if self.decoder is None else self._stderr.take()

    def _decoded(self, stream: Any, image: Any = None) -> Any:
        with self._stderr:
            try:
                return self.decoder.decode(stream, image=image, params=self.params)
            except Exception:  # Pillow gets its try
                return None


def region_codec() -> RegionCodec:
    """The codec of this thread, whose memory no other thread reuses. A fork gets a new codec."""
    return _codec_of(os.getpid(), threading.get_ident())


@cache  # a fork must not free the codec of its parent
def _codec_of(process: int, thread: int) -> RegionCodec:
    return RegionCodec()
