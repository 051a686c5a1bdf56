"""Decodes crops of encoded images, and only the region of the crop if the file allows it.

nvImageCodec decodes a region of ordinary JPEGs without the rest of the image, with the same bits as a whole decode and
a crop. Pillow decodes other files, and JPEGs that nvImageCodec refuses. Both raise errors of many types: after one of
nvImageCodec, Pillow decodes the file; one of Pillow becomes BadSample. The content decides the kind of a file, because
names mislead: ImageNet has a PNG that is named .JPEG.
"""

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from imagenet_opt.data.decode.nvimagecodec import Box, Pixels, is_jpeg, region_codec
from imagenet_opt.errors import BadSample, Name, first_line, named

EXTENSIONS = {
    "JPEG": "jpg",
    "MPO": "jpg",  # Pillow's name of a JPEG file with several pictures
    "PNG": "png",
    "WEBP": "webp",
    "BMP": "bmp",
    "TIFF": "tif",
    "PPM": "ppm",
    "GIF": "gif",
}
"""Kinds of images, by Pillow's names. Other parsers of Pillow are never used, because some of them start programs."""

_FORMATS = [name for name in EXTENSIONS if name != "MPO"]
_MOST_PIXELS = 2**29
"""Most pixels of an image that is opened, whatever the configuration: even a small crop of a progressive JPEG takes up
to 6 bytes per pixel of the image."""
_PIXELS_PER_BYTE = 2000
"""A complete JPEG has at most 512 pixels a byte: each block of 8 x 8 pixels takes a bit."""
_SCAN, _MOST_SCANS = b"\xff\xda\0", 100
"""Start of a scan, and most scans of a JPEG. Progressive JPEGs have about 10; thousands take minutes."""
_SCAN_BYTES, _QUICK = 10, 2**34
"""Fewest bytes of a scan, and pixels times scans that take few seconds, so that scans need not be counted."""
SLOW_SECONDS = 5.0
"""CPU time after which an image delays training so much that its name is reported. Our choice."""


@dataclass(frozen=True)
class OpenedImage:
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

    def open(self, encoded: bytes, name: Name) -> OpenedImage:
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
        return OpenedImage(encoded, name, height, width, stream, orientation)

    def crop(self, image: OpenedImage, box: Box) -> Pixels:
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

    def _crop(self, image: OpenedImage, box: Box) -> Pixels:
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


def decode_whole(image: OpenedImage) -> Pixels:
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


def _reduced(image: OpenedImage, box: Box, max_pixels: int) -> Pixels:
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


def open_image(encoded: bytes) -> Image.Image:
    """Open with Pillow without decoding. Raises errors of many types, because Pillow's parsers do."""
    with no_pixel_limit():
        image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
    check_size(encoded, image.height, image.width)
    if image.format == "TIFF" and image.mode in ("I", "F"):
        raise ValueError("a TIFF of 32 bits per channel states no range of its values; convert it to 8 or 16 bits")
    return image


def exif_orientation(encoded: bytes) -> int:
    """1 to 8; 1 is upright, also for damaged EXIF data, and for TIFF, which Pillow rotates by itself."""
    place, marks = (encoded[:4096], (b"Exif\0",)) if is_jpeg(encoded) else (encoded, (b"eXIf", b"EXIF"))
    if not any(mark in place for mark in marks):  # Pillow would decode a PNG to search for EXIF data at its end
        return 1
    try:
        image = open_image(encoded)
        orientation = 1 if image.format == "TIFF" else image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # Pillow names no errors for damaged EXIF data
        return 1
    return int(orientation) if orientation in range(1, 9) else 1


def upright(pixels_HWC: Pixels, orientation: int) -> Pixels:
    """A view of the image as EXIF 2.32 defines its `orientation` (tag 0x0112)."""
    if orientation >= 5:
        pixels_HWC = pixels_HWC.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels_HWC = pixels_HWC[::-1]
    if orientation in (2, 3, 6, 7):
        pixels_HWC = pixels_HWC[:, ::-1]
    return pixels_HWC


def check_size(encoded: bytes, height: int, width: int, max_pixels: int = _MOST_PIXELS) -> None:
    """Raise ValueError for a file whose decoding would take too much memory or time."""
    num_pixels, size = height * width, f"{width} x {height} pixels"
    if num_pixels > _MOST_PIXELS:
        raise ValueError(f"the header claims {size}, probably because the file is damaged")
    if num_pixels > max_pixels:
        raise ValueError(f"{size} are more than data.max_pixels={max_pixels}")
    if not is_jpeg(encoded):
        return
    if num_pixels > _PIXELS_PER_BYTE * len(encoded):
        raise ValueError(f"the header claims {size}, but the file has only {len(encoded)} bytes")
    may_be_slow = len(encoded) // _SCAN_BYTES * num_pixels > _QUICK
    if may_be_slow and (num_scans := encoded.count(_SCAN)) > _MOST_SCANS:
        raise ValueError(f"{size} in {num_scans} scans would take long; at most {_MOST_SCANS} scans are decoded")


def eight_bits(image: Image.Image) -> Image.Image:
    """The image in grey or RGB, without alpha. `convert` alone would clip images of 16 bits at 255."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


@contextmanager
def no_pixel_limit() -> Iterator[None]:
    """Lift Pillow's limit of pixels, and the warning before the limit; check_size has its own limits."""
    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit
