"""Checks one image before packing, and shrinks the image if requested."""

import io

from PIL import Image, UnidentifiedImageError

from imagenet_opt.data.decode.image_file import EXTENSIONS, eight_bits, is_whole_jpeg, open_image
from imagenet_opt.errors import BadSample

_MOST_PIXELS = 180 * 10**6
"""Half a gigabyte in decoded form."""


def prepare(encoded: bytes, *, max_side: int | None, quality: int) -> tuple[bytes, str]:
    """The bytes to pack and their file extension: `encoded` itself, or a JPEG whose longer side is max_side pixels.

    Of a complete JPEG that needs no shrinking only the header is read; any other image is decoded completely.

    Raises BadSample with the reason; the caller adds the file name.
    """
    if not encoded:
        raise BadSample("the file is empty")
    try:
        with open_image(encoded) as image:
            if max_side is not None and max(image.size) > max_side:
                return _shrink(image, max_side, quality), "jpg"
            if not is_whole_jpeg(encoded):
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


def _shrink(image: Image.Image, max_side: int, quality: int) -> bytes:
    """A smaller JPEG without metadata and without EXIF rotation, since training does not rotate either."""
    scale = max_side / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    image.draft(None, (2 * width, 2 * height))  # libjpeg decodes at 1/2, 1/4 or 1/8, to at least twice the target size
    _decode(image)
    small = eight_bits(image).resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    small.info.clear()
    file = io.BytesIO()
    small.save(file, "JPEG", quality=quality)
    return file.getvalue()
