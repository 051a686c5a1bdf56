"""Each image as it is packed: its size, format, pixels and metadata."""

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from imagenet_opt.errors import BadSample
from imagenet_opt.pack.image import PackOptions, prepare
from tests.data.conftest import encoded
from tests.pack.packs import jpeg, png


def opened(encoded: bytes) -> Image.Image:
    return Image.open(io.BytesIO(encoded))


def shrunk(encoded: bytes) -> Image.Image:
    made, extension = prepare(encoded, PackOptions(100))
    assert (opened(made).format, extension) == ("JPEG", "jpg")
    return opened(made)


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [(400, 300, (100, 75)), (300, 400, (75, 100)), (101, 10, (100, 10)), (3000, 2, (100, 1))],
)
def test_the_longer_side_is_max_side(width: int, height: int, size: tuple[int, int]) -> None:
    assert shrunk(jpeg(width, height)).size == size


def test_an_image_that_fits_keeps_every_byte() -> None:
    for image in (jpeg(100, 60), jpeg(60, 100, mode="CMYK"), jpeg(5, 5, mode="L")):
        assert prepare(image, PackOptions(100, 10)) == (image, "jpg")
    picture = png(np.zeros((3, 100), np.uint8))
    assert prepare(picture, PackOptions(100, 10)) == (picture, "png")


def test_images_that_become_smaller_files_are_encoded_again() -> None:
    """A progressive JPEG of quality 100 becomes a baseline one of the same size; one of low quality keeps its bytes."""
    pixels = Image.effect_noise((90, 60), 40).convert("RGB")
    fat, lean = encoded(pixels, quality=100, progressive=True), encoded(pixels, quality=20)
    made, extension = prepare(fat, PackOptions(quality=90, reencode="all"))
    assert len(made) < len(fat) and extension == "jpg" and opened(made).size == (90, 60)
    assert "progressive" in opened(fat).info and "progressive" not in opened(made).info
    assert np.abs(np.asarray(opened(made), float) - np.asarray(opened(fat), float)).mean() < 6
    assert prepare(lean, PackOptions(quality=90, reencode="all")) == (lean, "jpg")


def test_pixels_are_those_of_a_good_resize() -> None:
    rows, columns = np.mgrid[0:600, 0:800]
    smooth = np.stack([rows * 255 // 599, columns * 255 // 799, 128 + 60 * np.sin(rows / 40)], axis=2).astype(np.uint8)
    large = encoded(Image.fromarray(smooth), quality=95)
    expected = opened(large).resize((100, 75), Image.Resampling.BOX)
    assert np.abs(np.asarray(shrunk(large), float) - np.asarray(expected, float)).mean() < 2


def test_only_the_exif_rotation_stays_of_the_metadata() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to show
    made = shrunk(jpeg(400, 200, exif=exif, comment=b"taken by someone"))
    assert made.size == (100, 50)
    assert dict(made.getexif()) == {0x0112: 6} and "comment" not in made.info


def test_a_huge_image_that_only_full_decoding_opens_is_refused() -> None:
    header = png(np.zeros((1, 1), np.uint8))
    huge = header[:16] + (20000).to_bytes(4, "big") * 2 + header[24:]
    huge = huge[:29] + zlib.crc32(huge[12:29]).to_bytes(4, "big") + huge[33:]
    with pytest.raises(BadSample, match=r"20000 x 20000 pixels are more than data\.max_pixels"):
        prepare(huge, PackOptions())
