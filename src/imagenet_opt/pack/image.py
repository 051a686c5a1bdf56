"""One image on its way into a shard: looked at, and made smaller where asked."""

import io

from PIL import Image, UnidentifiedImageError

from imagenet_opt.data.decode.image_file import EXTENSIONS, eight_bits, is_whole_jpeg, open_image
from imagenet_opt.errors import BadSample

_MOST_PIXELS = 180 * 10**6
"""Half a gigabyte once decoded."""


def prepare(encoded: bytes, *, max_side: int | None, quality: int) -> tuple[bytes, str]:
    """The bytes to pack and their file extension: `encoded` itself, or a JPEG whose longer side is max_side pixels.

    A JPEG that ends as one and stays as it is has only its header read; anything else is decoded to the end.

    Raises BadSample with the reason alone, which the caller knows the file of.
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
        raise BadSample(f"no image: it begins with {encoded[:12]!r}") from error
    except BadSample:
        raise
    except Exception as error:  # Pillow raises whatever its parsers run into
        raise BadSample(f"cannot be decoded: {error}") from error


def _decode(image: Image.Image) -> None:
    if image.width * image.height > _MOST_PIXELS:
        raise BadSample(f"{image.width} x {image.height} pixels are too many to decode")
    image.load()


def _shrink(image: Image.Image, max_side: int, quality: int) -> bytes:
    """JPEG without metadata: sizes as stored, for training applies no EXIF rotation either."""
    scale = max_side / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    image.draft(None, (2 * width, 2 * height))  # libjpeg decodes at 1/2, 1/4 or 1/8, and keeps twice what is needed
    _decode(image)
    small = eight_bits(image).resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    small.info.clear()
    file = io.BytesIO()
    small.save(file, "JPEG", quality=quality)
    return file.getvalue()
