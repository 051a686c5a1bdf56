"""One image on its way into a shard: looked at, and made smaller where asked."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image, UnidentifiedImageError

from imagenet_opt.errors import BadSample

EXTENSIONS = {
    "JPEG": "jpg",
    "MPO": "jpg",  # what Pillow calls a JPEG that more pictures follow
    "PNG": "png",
    "WEBP": "webp",
    "BMP": "bmp",
    "TIFF": "tif",
    "PPM": "ppm",
    "GIF": "gif",
}
_FORMATS = [name for name in EXTENSIONS if name != "MPO"]
_END_OF_JPEG = b"\xff\xd9"
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
        with _of_any_size(), Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
            extension = EXTENSIONS[str(image.format)]
            if max_side is not None and max(image.size) > max_side:
                return _shrink(image, max_side, quality), "jpg"
            if extension != "jpg" or not encoded.endswith(_END_OF_JPEG):
                _decode(image)
            return encoded, extension
    except UnidentifiedImageError as error:
        raise BadSample(f"no image: it begins with {encoded[:12]!r}") from error
    except BadSample:
        raise
    except Exception as error:  # Pillow raises whatever its parsers run into
        raise BadSample(f"cannot be decoded: {error}") from error


@contextmanager
def _of_any_size() -> Iterator[None]:
    """Without Pillow's guard, which would refuse the header of what is decoded at an eighth of its size."""
    guard, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = guard


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
    small = _eight_bits(image).resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    small.info.clear()
    file = io.BytesIO()
    small.save(file, "JPEG", quality=quality)
    return file.getvalue()


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey stays grey; the rest becomes RGB, without its alpha channel."""
    if image.mode.startswith("I"):  # 16 bits, which convert() would clip at 255
        return Image.fromarray((np.asarray(image).astype(np.int64) // 256).clip(0, 255).astype(np.uint8))
    return image.convert("L" if image.mode in ("1", "L", "LA", "F") else "RGB")
