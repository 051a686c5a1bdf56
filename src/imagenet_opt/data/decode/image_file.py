"""Determines the kind of an image file before decoding, for packing and for training.

The content decides, because names mislead: ImageNet has a PNG that is named .JPEG.
"""

import io
import warnings
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
REFUSED = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""Errors of Pillow for files that Pillow does not open."""

_FORMATS = [name for name in EXTENSIONS if name != "MPO"]
_START, _END = b"\xff\xd8", b"\xff\xd9"
_TAIL = 1024
"""The end mark of a JPEG must be within these last bytes; some writers add padding."""
_MOST_PIXELS = 2**29
"""Most pixels of an image, and the only limit for JPEGs. Even a small crop of a progressive JPEG takes up to 6 bytes
per pixel of the image."""


def is_jpeg(encoded: bytes) -> bool:
    return encoded[:2] == _START


def is_whole_jpeg(encoded: bytes) -> bool:
    """Whether the bytes have the start mark and the end mark of a JPEG, so that no decoder searches for the end."""
    return is_jpeg(encoded) and encoded.rfind(_END, -_TAIL) >= 0


def open_image(encoded: bytes) -> Image.Image:
    """Open with Pillow without decoding. JPEGs may have more pixels than other formats, because they are decoded at
    a suitable scale. Raises one of REFUSED."""
    limit = Image.MAX_IMAGE_PIXELS
    try:
        if is_jpeg(encoded):
            Image.MAX_IMAGE_PIXELS = None
        with no_bomb_warning():
            image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
    finally:
        Image.MAX_IMAGE_PIXELS = limit
    check_size(image.height, image.width)
    return image


def exif_orientation(encoded: bytes) -> int:
    """1 to 8; 1 is upright, also for damaged EXIF data, and for TIFF, which Pillow rotates by itself."""
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


def check_size(height: int, width: int) -> None:
    """Raise ValueError for too many pixels."""
    if height * width > _MOST_PIXELS:
        raise ValueError(f"the header claims {width} x {height} pixels, probably because the file is damaged")


def eight_bits(image: Image.Image) -> Image.Image:
    """The image in grey or RGB, without alpha. `convert` alone would clip images of 16 bits at 255."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    return image.convert("L" if image.mode in ("1", "L", "LA", "F") else "RGB")


@contextmanager
def no_bomb_warning() -> Iterator[None]:
    """Silence Pillow's warning about images with more pixels than Image.MAX_IMAGE_PIXELS."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield
