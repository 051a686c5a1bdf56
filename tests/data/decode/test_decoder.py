"""Crops of encoded images: the same bits as a whole decode, and a way out for whatever is odd."""

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.io import ImageReadMode, decode_image

from imagenet_opt.data.decode.decoder import Decoder
from imagenet_opt.errors import BadSample
from tests.data.conftest import encoded, picture

BOX = (7, 5, 20, 31)
TURNED = Image.Exif()
TURNED[0x0112] = 6  # a quarter


def decoding(*, exif_rotation: bool = False, max_crop_pixels: int = 2**22, region_decode: bool = True) -> Decoder:
    return Decoder(exif_rotation=exif_rotation, max_crop_pixels=max_crop_pixels, region_decode=region_decode)


def crop(data: bytes, box: tuple[int, int, int, int] = BOX, **options) -> np.ndarray:
    decoder = decoding(**options)
    return decoder.crop(decoder.open(data, "some.JPEG"), box).copy()


def whole(data: bytes, **options) -> np.ndarray:
    found = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB, **options)
    return found.permute(1, 2, 0).numpy()


def part(pixels: np.ndarray, box: tuple[int, int, int, int] = BOX) -> np.ndarray:
    top, left, height, width = box
    return pixels[top : top + height, left : left + width]


def some_boxes(num: int, size: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    rng = np.random.default_rng(1)
    sides = [tuple(int(rng.integers(1, n + 1)) for n in size) for _ in range(num)]
    return [(int(rng.integers(size[0] - h + 1)), int(rng.integers(size[1] - w + 1)), h, w) for h, w in sides]


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"quality": 100}], ids=str)
@pytest.mark.parametrize("size", [(48, 64), (41, 53), (160, 227)])
def test_ordinary_jpegs_are_decoded_bit_for_bit(subsampling: int, options: dict, size: tuple[int, int]) -> None:
    data = encoded(picture(*size), **{"quality": 85, "subsampling": subsampling} | options)
    decoder = decoding()
    image = decoder.open(data, "some.JPEG")
    assert (image.height, image.width) == size
    assert image.stream is not None  # that is: no whole decode
    for box in some_boxes(20, size):
        assert np.array_equal(decoder.crop(image, box), part(whole(data), box)), box


def test_real_images_are_decoded_bit_for_bit(sample_root: Path) -> None:
    decoder, wholly, regions = decoding(), decoding(region_decode=False), 0
    for path in sorted(sample_root.glob("*/*.JPEG"))[::5]:
        image = decoder.open(path.read_bytes(), str(path))
        expected = whole(image.encoded)
        assert (image.height, image.width) == expected.shape[:2]
        for box in some_boxes(2, expected.shape[:2]):
            regions += image.stream is not None
            assert np.array_equal(decoder.crop(image, box), part(expected, box)), (path, box)
            assert np.array_equal(wholly.crop(wholly.open(image.encoded, str(path)), box), part(expected, box))
    assert regions >= 390


@pytest.mark.parametrize("most", [2**22, 48 * 64 // 2])
@pytest.mark.parametrize("exif_rotation", [False, True])
@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        ("RGB", "JPEG", {"exif": TURNED}),
        ("RGB", "JPEG", {"progressive": True}),
        ("L", "JPEG", {}),
        ("CMYK", "JPEG", {}),
        ("RGB", "PNG", {}),
    ],
)
def test_without_region_decode_pixels_are_the_same(
    mode: str, kind: str, options: dict, exif_rotation: bool, most: int
) -> None:
    """Of small crops, of small crops of a picture that is large, and of crops that come smaller."""
    data = encoded(picture(48, 64, mode), kind, **options)
    for box in (BOX, (0, 0, 1, 1), (0, 0, 48, 48), (3, 1, 45, 47)):
        found = [
            crop(data, box, exif_rotation=exif_rotation, max_crop_pixels=most, region_decode=region_decode)
            for region_decode in (True, False)
        ]
        assert np.array_equal(*found), box


def test_grey_becomes_three_channels() -> None:
    data = encoded(picture(48, 64, "L"))
    assert np.array_equal(crop(data), part(whole(data)))


@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        ("CMYK", "JPEG", {}),
        ("RGB", "PNG", {}),
        ("P", "PNG", {}),
        ("LA", "PNG", {}),
        ("RGB", "WEBP", {"lossless": True}),
        ("RGB", "BMP", {}),
        ("P", "GIF", {"save_all": True, "append_images": [Image.new("P", (64, 48))]}),
        ("RGB", "WEBP", {"lossless": True, "save_all": True, "append_images": [Image.new("RGB", (64, 48))]}),
    ],
)
def test_other_files_under_a_jpegs_name_are_decoded_whole(mode: str, kind: str, options: dict) -> None:
    image = picture(48, 64, mode)
    found = crop(encoded(image, kind, **options))
    expected = part(np.asarray(Image.open(io.BytesIO(encoded(image, kind, **options))).convert("RGB")))
    assert found.shape == expected.shape == (20, 31, 3)
    assert np.abs(found.astype(int) - expected).mean() < 6  # how CMYK becomes RGB is a matter of taste


def ycck(image: Image.Image) -> bytes:
    """As Adobe writes it: luma and chroma in the place of cyan, magenta and yellow; no black; Pillow inverts all."""
    planes = (*image.convert("YCbCr").split(), Image.new("L", image.size))
    data = bytearray(encoded(Image.merge("CMYK", planes), quality=98))
    data[data.index(b"Adobe") + 11] = 2  # the transform
    return bytes(data)


def test_jpegs_of_four_colours_become_rgb() -> None:
    image = picture(48, 64)
    found = crop(ycck(image))
    assert np.abs(found.astype(int) - part(np.asarray(image))).mean() < 6


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_become_eight(kind: str) -> None:
    levels = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16)
    data = encoded(Image.fromarray(levels), kind)
    assert np.abs(crop(data)[..., 0].astype(int) - part(levels) // 257).max() <= 1
    smaller = crop(data, (0, 0, 48, 64), max_crop_pixels=48 * 64 // 4)
    expected = (levels // 257).reshape(24, 2, 32, 2).mean((1, 3))
    assert np.abs(smaller[..., 1] - expected).max() < 2


def test_exif_turns_only_when_asked() -> None:
    data = encoded(picture(48, 64), exif=TURNED)
    assert np.array_equal(crop(data), part(whole(data)))
    decoder = decoding(exif_rotation=True)
    image = decoder.open(data, "some.JPEG")
    assert (image.height, image.width) == (64, 48)
    turned = np.rot90(whole(data), k=-1)
    assert np.array_equal(decoder.crop(image, BOX), part(turned))
    smaller = crop(data, (0, 0, 64, 48), exif_rotation=True, max_crop_pixels=48 * 64 // 4)
    assert np.abs(smaller - turned.reshape(32, 2, 24, 2, 3).mean((1, 3))).max() < 1


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {}), ("JPEG", {"progressive": True}), ("TIFF", {})])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_rotated_as_pillow_rotates_them(orientation: int, kind: str, options: dict) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(48, 64), kind, exif=exif, **options)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)).convert("RGB"))
    decoder = decoding(exif_rotation=True)
    image = decoder.open(data, "some.JPEG")
    assert (image.width, image.height) == expected.size
    found = decoder.crop(image, BOX)
    assert min(found.strides) > 0
    assert np.abs(found.astype(int) - part(np.asarray(expected))).mean() < 1  # two builds of libjpeg-turbo


def test_damaged_exif_data_rotate_nothing() -> None:
    data = bytearray(encoded(picture(48, 64), exif=TURNED))
    start = data.index(b"Exif\0\0")
    data[start + 6 : start + 14] = b"\xff" * 8
    decoder = decoding(exif_rotation=True)
    image = decoder.open(bytes(data), "some.JPEG")
    assert (image.height, image.width) == (48, 64)
    assert np.array_equal(decoder.crop(image, BOX), part(whole(bytes(data))))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"<html>404</html>", "no image that any decoder knows"),
        (encoded(picture(48, 64))[:-300], "some.JPEG"),
        (encoded(picture(48, 64))[:100], "some.JPEG"),
        (encoded(picture(48, 64), "PNG")[:500], "some.JPEG"),
        (encoded(picture(48, 64), "GIF")[:30], "some.JPEG"),
    ],
)
def test_what_nothing_opens_is_told_by_name(data: bytes, words: str) -> None:
    with pytest.raises(BadSample, match=words) as caught:
        crop(data, (0, 0, 1, 1))
    assert "some.JPEG" in str(caught.value)
    assert "data.root" in str(caught.value)


def test_padding_behind_the_end_does_no_harm() -> None:
    data = encoded(picture(48, 64))
    for more in (b"\0" * 100, b"\0" * 5000, b"junk" * 1000):
        assert np.array_equal(crop(data + more), part(whole(data)))


def test_one_pixel_is_an_image() -> None:
    found = crop(encoded(Image.new("RGB", (1, 1), (250, 128, 3)), quality=100, subsampling=0), (0, 0, 1, 1))
    assert np.abs(found.astype(int) - (250, 128, 3)).max() <= 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_large_crops_come_smaller_as_means_of_their_pixels(kind: str) -> None:
    data = encoded(picture(400, 600).resize((600, 400)), kind)
    box = (40, 60, 320, 480)
    found = crop(data, box, max_crop_pixels=320 * 480 // 16)
    assert found.shape[0] * found.shape[1] <= 320 * 480 // 16
    assert found.shape == (80, 120, 3)
    blocks = part(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), box).reshape(80, 4, 120, 4, 3).mean((1, 3))
    assert np.abs(found - blocks).mean() < 6
    small = (40, 60, 50, 50)
    assert np.array_equal(crop(data, small, max_crop_pixels=10_000), part(whole(data), small))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    ("size", "box", "most"),
    [((1, 3000), (0, 0, 1, 3000), 500), ((20, 999), (3, 0, 1, 999), 90), ((3, 3), (1, 1, 2, 2), 1)],
)
def test_a_crop_made_smaller_keeps_a_pixel_a_side(kind: str, size: tuple, box: tuple, most: int) -> None:
    height, width, _ = crop(encoded(picture(*size), kind), box, max_crop_pixels=most).shape
    assert 1 <= height * width <= most


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {})])
@pytest.mark.parametrize("num_crops", [2, 3, 7])
def test_large_crops_of_white_images_are_white_to_their_borders(num_crops: int, kind: str, options: dict) -> None:
    for side in range(130, 260):
        data = encoded(Image.new("RGB", (side, side + 3), (255, 255, 255)), kind, **options)
        most = side * (side + 3) // num_crops
        assert crop(data, (0, 0, side + 3, side), max_crop_pixels=most).min() == 255, side
        assert crop(data, (9, 7, side - 6, side - 7), max_crop_pixels=most // 2).min() == 255, side


def test_pillows_warning_of_half_a_bomb_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4000)  # 100 x 60 is more, but not twice as much
    found = crop(encoded(picture(100, 60), "PNG"), (0, 0, 100, 60), max_crop_pixels=1500)
    assert found.shape == (50, 30, 3)
    assert Image.MAX_IMAGE_PIXELS == 4000


def peak_growth(data: bytes, box: tuple[int, int, int, int], *, region_decode: bool = True) -> tuple[int, float]:
    """Bytes of a crop, and MB that its decoding took at most, in a process of its own."""
    command = (
        "import sys, torch; from imagenet_opt.data.decode.decoder import Decoder;"
        "from imagenet_opt.data.decode.region_codec import load_codec; load_codec();"
        "from imagenet_opt.measure.telemetry.peak_memory import peak_gib; cpu = torch.device('cpu');"
        "data = sys.stdin.buffer.read();"
        f"decoder = Decoder(exif_rotation=False, max_crop_pixels=2**22, region_decode={region_decode});"
        "before = peak_gib(cpu);"
        f"image = decoder.open(data, 'large'); pixels = decoder.crop(image, {box});"
        "print(pixels.size, peak_gib(cpu) - before)"
    )
    done = subprocess.run([sys.executable, "-c", command], input=data, capture_output=True, timeout=120, check=True)
    num_bytes, grown_gib = done.stdout.split()
    return int(num_bytes), float(grown_gib) * 2**30 / 1e6


@pytest.mark.slow
def test_twenty_thousand_pixels_take_little_memory() -> None:
    num_bytes, grown_mb = peak_growth(
        encoded(Image.new("RGB", (20000, 20000), (10, 200, 30)), quality=50), (0, 0, 20000, 20000)
    )
    assert num_bytes <= 3 * 2**22
    assert grown_mb < 300  # of 1200


@pytest.mark.slow
@pytest.mark.parametrize("region_decode", [True, False])
def test_a_small_crop_of_a_large_image_takes_the_memory_of_the_crop(region_decode: bool) -> None:
    """Without region decode that of the picture."""
    data = encoded(Image.new("RGB", (8000, 8000)), quality=50)
    num_bytes, grown_mb = peak_growth(data, (7000, 7000, 300, 300), region_decode=region_decode)
    assert num_bytes == 3 * 300 * 300
    assert grown_mb < 50 if region_decode else grown_mb > 150  # of 192


def test_a_decompression_bomb_is_refused() -> None:
    data = encoded(Image.new("RGB", (8, 8)), "PNG")
    header = b"IHDR" + struct.pack(">II", 60_000, 60_000) + data[24:29]
    with pytest.raises(BadSample, match=r"some\.JPEG"):
        crop(data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:])


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_a_jpeg_that_claims_billions_of_pixels_is_refused(options: dict) -> None:
    data = bytearray(encoded(picture(48, 64), **options))
    frame = data.index(b"\xff\xc2" if options else b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 65_500, 65_400)
    with pytest.raises(BadSample, match=r"some\.JPEG: it claims 65400 x 65500 pixels.*data\.root"):
        crop(bytes(data))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_damage_is_told_or_decoded_and_never_worse(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    """capfd: libraries complain to file descriptor 2."""
    rng = np.random.default_rng(0)
    sound, decoder = encoded(picture(48, 64), kind), decoding(max_crop_pixels=40 * 60)
    opened = 0
    for _ in range(150):
        data = bytearray(sound)
        for place in rng.integers(0, rng.choice([60, len(data)]), 3):
            data[place] = rng.integers(256)
        try:
            image = decoder.open(bytes(data[: rng.integers(len(data) // 2, 2 * len(data))]), "some.JPEG")
            box = image.height // 3, image.width // 3, 1 + image.height // 2, 1 + image.width // 2
            pixels = decoder.crop(image, box)
        except BadSample as error:
            assert "some.JPEG" in str(error)
            continue
        opened += 1
        assert pixels.dtype == np.uint8
        assert pixels.shape == (*box[2:], 3) or pixels.shape[0] * pixels.shape[1] <= 40 * 60 < box[2] * box[3]
    assert 0 < opened < 150
