"""Determines the kind of an image file before decoding, for packing and for training.

The content decides, because names mislead: ImageNet has a PNG that is named .JPEG.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

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
_START, _END = b"\xff\xd8", b"\xff\xd9"
_TAIL = 1024
"""The end mark of a JPEG must be within these last bytes; some writers add padding."""
_MOST_PIXELS = 2**29
"""Most pixels of an image that is opened, whatever the configuration: even a small crop of a progressive JPEG takes up
to 6 bytes per pixel of the image."""
_PIXELS_PER_BYTE = 2000
"""A complete JPEG has at most 512 pixels a byte: each block of 8 x 8 pixels takes a bit."""
_SCAN, _MOST_SCANS = b"\xff\xda\0", 100
"""Start of a scan, and most scans of a JPEG. Progressive JPEGs have about 10; thousands take minutes."""
_SCAN_BYTES, _QUICK = 10, 2**34
"""Fewest bytes of a scan, and pixels times scans that take few seconds, so that scans need not be counted."""


def is_jpeg(encoded: bytes) -> bool:
    return encoded[:2] == _START


def is_whole_jpeg(encoded: bytes) -> bool:
    """Whether the bytes have the start mark and the end mark of a JPEG, so that no decoder searches for the end."""
    return is_jpeg(encoded) and encoded.rfind(_END, -_TAIL) >= 0


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


def upright(pixels_HWC: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
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
