"""How images are packed: checks one image, and shrinks or encodes it again if requested."""

import io
from dataclasses import dataclass

from PIL import ExifTags, Image, UnidentifiedImageError

from imagenet_opt.data.decode.decoder import EXTENSIONS, check_size, eight_bits, exif_orientation, open_image
from imagenet_opt.data.decode.nvimagecodec import is_whole_jpeg
from imagenet_opt.errors import BadSample, first_line


@dataclass(frozen=True)
class PackOptions:
    """max_side: limit of the longer side in pixels, None to keep it. quality: JPEG quality of encoded images.

    reencode: "shrunk" encodes only images that are shrunk, "all" also other images whose files become smaller.
    shard_mb: approximate size of a shard in 10^6 bytes. seed: for the order of the training images. max_pixels: larger
    images are left out.
    """

    max_side: int | None = None
    quality: int = 90
    reencode: str = "shrunk"
    shard_mb: float = 256.0
    seed: int = 0
    max_pixels: int = 100_000_000


PRESETS = {224: PackOptions(max_side=500, reencode="all"), 176: PackOptions(max_side=400, reencode="all")}
"""Width of training images -> options for them. The sides are those of FFCV's published data sets: for ResNet-50, which
is trained at 160 to 192 pixels and judged at 256, and for ResNet-18 (libffcv/ffcv-imagenet, README)."""


def preset_for(image_size: int) -> int:
    """The key of PRESETS for training images of this width."""
    return min((width for width in PRESETS if width >= image_size), default=max(PRESETS))


def prepare(encoded: bytes, options: PackOptions) -> tuple[bytes, str]:
    """The bytes to pack and their file extension: `encoded` itself, or a JPEG whose longer side has at most max_side
    pixels.

    Only the header is read of a complete JPEG that keeps its bytes; any other image is decoded completely.

    Raises BadSample with the reason, also for an image of more than max_pixels; the caller adds the file name.
    """
    if not encoded:
        raise BadSample("the file is empty")
    try:
        with open_image(encoded) as image:
            check_size(encoded, image.height, image.width, options.max_pixels)
            if options.max_side is not None and (longer := max(image.size)) > options.max_side:
                width, height = (max(1, round(side * options.max_side / longer)) for side in image.size)
                return _encode(image, (width, height), options.quality, exif_orientation(encoded)), "jpg"
            if options.reencode == "all":
                reencoded = _encode(image, image.size, options.quality, exif_orientation(encoded))
                if len(reencoded) < len(encoded):
                    return reencoded, "jpg"
            elif not is_whole_jpeg(encoded):
                image.load()
            return encoded, EXTENSIONS[str(image.format)]
    except UnidentifiedImageError as error:
        raise BadSample(f"not an image: the file begins with {encoded[:12]!r}") from error
    except BadSample:
        raise
    except Exception as error:  # Pillow's parsers raise many kinds of errors
        raise BadSample(f"cannot be decoded: {first_line(error)}") from error


def _encode(image: Image.Image, size: tuple[int, int], quality: int, orientation: int) -> bytes:
    """A baseline JPEG of (width, height) without metadata but the EXIF orientation, for data.exif_rotation=true."""
    if size != image.size:
        image.draft(None, (2 * size[0], 2 * size[1]))  # libjpeg decodes at 1/2, 1/4 or 1/8, to at least twice the size
    image.load()
    pixels = eight_bits(image)
    if size != pixels.size:
        pixels = pixels.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    pixels.info.clear()
    file = io.BytesIO()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    pixels.save(file, "JPEG", quality=quality, exif=exif.tobytes() if orientation != 1 else b"")
    return file.getvalue()
