"""Each image as it is packed: its size, format, pixels and metadata."""

import io
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagenet_opt.errors import BadSample
from imagenet_opt.pack.image import Encoding, prepare
from tests.pack.packs import jpeg, png


def opened(encoded: bytes) -> Image.Image:
    return Image.open(io.BytesIO(encoded))


def shrunk(encoded: bytes) -> Image.Image:
    made, extension = prepare(encoded, Encoding(100))
    assert (opened(made).format, extension) == ("JPEG", "jpg")
    return opened(made)


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [(400, 300, (100, 75)), (300, 400, (75, 100)), (101, 10, (100, 10)), (3000, 2, (100, 1))],
)
def test_the_longer_side_is_max_side(width: int, height: int, size: tuple[int, int]) -> None:
    assert shrunk(jpeg(width, height)).size == size


def test_an_image_that_fits_keeps_every_byte() -> None:
    for encoded in (jpeg(100, 60), jpeg(60, 100, mode="CMYK"), jpeg(5, 5, mode="L")):
        assert prepare(encoded, Encoding(100, 10)) == (encoded, "jpg")
    picture = png(np.zeros((3, 100), np.uint8))
    assert prepare(picture, Encoding(100, 10)) == (picture, "png")


def test_images_that_become_smaller_files_are_encoded_again() -> None:
    """A progressive JPEG of quality 100 becomes a baseline one of the same size; one of low quality keeps its bytes."""
    pixels = Image.effect_noise((90, 60), 40).convert("RGB")
    fat, lean = io.BytesIO(), io.BytesIO()
    pixels.save(fat, "JPEG", quality=100, progressive=True)
    pixels.save(lean, "JPEG", quality=20)
    made, extension = prepare(fat.getvalue(), Encoding(quality=90, reencode="all"))
    assert len(made) < len(fat.getvalue()) and extension == "jpg" and opened(made).size == (90, 60)
    assert "progressive" in opened(fat.getvalue()).info and "progressive" not in opened(made).info
    difference = np.asarray(opened(made), float) - np.asarray(opened(fat.getvalue()), float)
    assert np.abs(difference).mean() < 6
    assert prepare(lean.getvalue(), Encoding(quality=90, reencode="all")) == (lean.getvalue(), "jpg")


@pytest.mark.parametrize(("mode", "becomes"), [("L", "L"), ("RGB", "RGB"), ("CMYK", "RGB")])
def test_grey_stays_grey_and_the_rest_is_rgb(mode: str, becomes: str) -> None:
    assert shrunk(jpeg(200, 100, mode=mode)).mode == becomes


def test_pixels_are_those_of_a_good_resize() -> None:
    rows, columns = np.mgrid[0:600, 0:800]
    smooth = np.stack([rows * 255 // 599, columns * 255 // 799, 128 + 60 * np.sin(rows / 40)], axis=2).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(smooth).save(file, "JPEG", quality=95)
    expected = opened(file.getvalue()).resize((100, 75), Image.Resampling.BOX)
    assert np.abs(np.asarray(shrunk(file.getvalue()), float) - np.asarray(expected, float)).mean() < 2


def test_16_bits_become_8_without_clipping() -> None:
    made = shrunk(png((np.arange(200 * 200, dtype=np.uint32).reshape(200, 200) * 65535 // 39999).astype(np.uint16)))
    assert made.mode == "L" and made.size == (100, 100)
    assert abs(np.asarray(made, float).mean() - 127.5) < 2


def test_only_the_exif_rotation_stays_of_the_metadata() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to show
    made = shrunk(jpeg(400, 200, exif=exif, comment=b"taken by someone"))
    assert made.size == (100, 50)
    assert dict(made.getexif()) == {0x0112: 6} and "comment" not in made.info


def test_quality_decides_the_size() -> None:
    sizes = [len(prepare(jpeg(400, 300), Encoding(100, quality))[0]) for quality in (30, 90)]
    assert sizes[0] < sizes[1] / 2


def huge_jpeg(side: int) -> bytes:
    """All mid-grey, side x side pixels: each block of 8 x 8 is 001010, a DC difference of 0 and the end of block."""
    file = io.BytesIO()
    Image.new("L", (8, 8), 128).save(file, "JPEG", quality=90)
    header, start_of_scan = file.getvalue(), file.getvalue().index(b"\xff\xda") + 10
    size = header.index(b"\xff\xc0") + 5
    header = header[:size] + side.to_bytes(2, "big") * 2 + header[size + 4 : start_of_scan]
    return header + bytes([0x28, 0xA2, 0x8A]) * ((side // 8) ** 2 // 4) + b"\xff\xd9"


def test_an_image_of_20000_pixels_takes_little_memory(tmp_path: Path) -> None:
    file = tmp_path / "huge.jpg"
    file.write_bytes(huge_jpeg(20000))
    code = (
        "import resource, sys; from pathlib import Path; from imagenet_opt.pack.image import Encoding, prepare\n"
        "encoded = Path(sys.argv[1]).read_bytes()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "made = prepare(encoded, Encoding(256, max_pixels=20000**2))[0]\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        "Path(sys.argv[1]).write_bytes(made)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, file], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60_000  # KiB; it has 400 MB of pixels
    with Image.open(file) as made:
        assert made.size == (256, 256)
        assert made.getextrema() == (128, 128)


def test_a_huge_image_that_only_full_decoding_opens_is_refused() -> None:
    header = png(np.zeros((1, 1), np.uint8))
    huge = header[:16] + (20000).to_bytes(4, "big") * 2 + header[24:]
    huge = huge[:29] + zlib.crc32(huge[12:29]).to_bytes(4, "big") + huge[33:]
    with pytest.raises(BadSample, match=r"20000 x 20000 pixels are more than data\.max_pixels"):
        prepare(huge, Encoding())


def test_a_jpeg_above_max_pixels_is_left_out_as_in_training() -> None:
    with pytest.raises(BadSample, match=r"data\.max_pixels=7999"):
        prepare(jpeg(100, 80), Encoding(max_pixels=7999))
    assert prepare(jpeg(100, 80), Encoding(max_pixels=8000))[0] == jpeg(100, 80)
