"""Checks one image before packing, and shrinks or encodes it again if requested."""

import io
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

from imagenet_opt.data.decode.image_file import EXTENSIONS, eight_bits, is_whole_jpeg, open_image
from imagenet_opt.errors import BadSample

_MOST_PIXELS = 180 * 10**6
"""Half a gigabyte of decoded pixels."""


class Encoding(NamedTuple):
    """How images are packed; its fields are keys of PackOptions."""

    max_side: int | None = None
    quality: int = 90
    reencode: str = "shrunk"


def prepare(encoded: bytes, encoding: Encoding) -> tuple[bytes, str]:
    """The bytes to pack and their file extension: `encoded` itself, or a JPEG whose longer side has at most max_side
    pixels.

    Only the header is read of a complete JPEG that keeps its bytes; any other image is decoded completely.

    Raises BadSample with the reason; the caller adds the file name.
    """
    if not encoded:
        raise BadSample("the file is empty")
    try:
        with open_image(encoded) as image:
            if encoding.max_side is not None and (longer := max(image.size)) > encoding.max_side:
                width, height = (max(1, round(side * encoding.max_side / longer)) for side in image.size)
                return _encode(image, (width, height), encoding.quality), "jpg"
            if encoding.reencode == "all":
                reencoded = _encode(image, image.size, encoding.quality)
                if len(reencoded) < len(encoded):
                    return reencoded, "jpg"
            elif not is_whole_jpeg(encoded):
                _decode(image)
            return encoded, EXTENSIONS[str(image.format)]
    except UnidentifiedImageError as error:
        raise BadSample(f"not an image: the file begins with {encoded[:12]!r}") from error
    except BadSample:
        raise
    except Exception as error:  # Pillow's parsers raise many kinds of errors
        raise BadSample(f"cannot be decoded: {error}") from error


def _decode(image: Image.Image) -> None:
    if image.width * image.height > _MOST_PIXELS:
        raise BadSample(f"{image.width} x {image.height} pixels are too many to decode")
    image.load()


def _encode(image: Image.Image, size: tuple[int, int], quality: int) -> bytes:
    """A baseline JPEG of (width, height) without metadata and without EXIF rotation, since training does not rotate
    either."""
    if size != image.size:
        image.draft(None, (2 * size[0], 2 * size[1]))  # libjpeg decodes at 1/2, 1/4 or 1/8, to at least twice the size
    _decode(image)
    pixels = eight_bits(image)
    if size != pixels.size:
        pixels = pixels.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    pixels.info.clear()
    file = io.BytesIO()
    pixels.save(file, "JPEG", quality=quality)
    return file.getvalue()
