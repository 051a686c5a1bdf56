"""Crops of encoded images: the same bits as a whole decode, for files of any kind."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.data.conftest import encoded, picture
from tests.data.decode.crops import BOX, crop, decoding, part, whole


def exif(orientation: int) -> Image.Exif:
    data = Image.Exif()
    data[0x0112] = orientation
    return data


def some_boxes(num: int, size: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    rng = np.random.default_rng(1)
    sides = [tuple(int(rng.integers(1, n + 1)) for n in size) for _ in range(num)]
    return [(int(rng.integers(size[0] - h + 1)), int(rng.integers(size[1] - w + 1)), h, w) for h, w in sides]


@pytest.mark.parametrize("subsampling", [0, 2])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 1}], ids=str)
@pytest.mark.parametrize(("size", "mode"), [((41, 53), "RGB"), ((160, 227), "RGB"), ((48, 64), "L")])
def test_ordinary_jpegs_decode_bit_for_bit(subsampling: int, options: dict, size: tuple[int, int], mode: str) -> None:
    data = encoded(picture(*size, mode), **{"quality": 85, "subsampling": subsampling} | options)
    decoder, whole_decoder = decoding(), decoding(region_decode=False)
    image = decoder.open(data, "some.JPEG")
    assert (image.height, image.width) == size
    assert image.stream is not None  # so the image is not decoded whole
    for box in (*some_boxes(20, size), (3, 0, 30, 1), (3, size[1] - 1, 30, 1)):
        assert np.array_equal(decoder.crop(image, box), part(whole(data), box)), box
        assert np.array_equal(whole_decoder.crop(image, box), part(whole(data), box)), box


def test_real_images_are_decoded_bit_for_bit(sample_root: Path) -> None:
    decoder, regions = decoding(), 0
    for path in sorted(sample_root.glob("*/*.JPEG"))[::10]:
        image = decoder.open(path.read_bytes(), str(path))
        expected = whole(image.encoded)
        assert (image.height, image.width) == expected.shape[:2]
        for box in some_boxes(2, expected.shape[:2]):
            regions += image.stream is not None
            assert np.array_equal(decoder.crop(image, box), part(expected, box)), (path, box)
    assert regions >= 195


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
def test_other_kinds_of_files_are_decoded_whole(mode: str, kind: str, options: dict) -> None:
    image = picture(48, 64, mode)
    actual = crop(encoded(image, kind, **options))
    expected = part(whole(encoded(image, kind, **options)))
    assert actual.shape == expected.shape == (20, 31, 3)
    assert np.abs(actual.astype(int) - expected).mean() < 6  # decoders convert CMYK to RGB in different ways


def test_jpegs_of_four_colours_become_rgb() -> None:
    """As Adobe writes them: luma and chroma instead of cyan, magenta and yellow, and no black; Pillow inverts all."""
    image = picture(48, 64)
    planes = (*image.convert("YCbCr").split(), Image.new("L", image.size))
    data = bytearray(encoded(Image.merge("CMYK", planes), quality=98))
    data[data.index(b"Adobe") + 11] = 2  # the transform
    assert np.abs(crop(bytes(data)).astype(int) - part(np.asarray(image))).mean() < 6


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_become_eight(kind: str) -> None:
    levels = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16)
    data = encoded(Image.fromarray(levels), kind)
    assert np.abs(crop(data)[..., 0].astype(int) - part(levels) // 257).max() <= 1
    smaller = crop(data, (0, 0, 48, 64), max_crop_pixels=48 * 64 // 4)
    expected = (levels // 257).reshape(24, 2, 32, 2).mean((1, 3))
    assert np.abs(smaller[..., 1] - expected).max() < 2


def test_exif_data_rotate_only_on_request() -> None:
    data = encoded(picture(48, 64), exif=exif(6))
    assert np.array_equal(crop(data), part(whole(data)))
    turned = np.rot90(whole(data), k=-1)
    assert np.array_equal(crop(data, exif_rotation=True), part(turned))
    smaller = crop(data, (0, 0, 64, 48), exif_rotation=True, max_crop_pixels=48 * 64 // 4)
    assert np.abs(smaller - turned.reshape(32, 2, 24, 2, 3).mean((1, 3))).max() < 1


@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {}), ("JPEG", {"progressive": True}), ("TIFF", {}), ("PNG", {}), ("WEBP", {"lossless": True})],
)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_rotated_as_pillow_rotates_them(orientation: int, kind: str, options: dict) -> None:
    data = encoded(picture(48, 64), kind, exif=exif(orientation), **options)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)).convert("RGB"))
    decoder = decoding(exif_rotation=True)
    image = decoder.open(data, "some.JPEG")
    assert (image.width, image.height) == expected.size
    actual = decoder.crop(image, BOX)
    assert min(actual.strides) > 0
    assert np.abs(actual.astype(int) - part(np.asarray(expected))).mean() < 1  # two builds of libjpeg-turbo


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_large_crops_are_reduced_to_means_of_their_pixels(kind: str) -> None:
    data = encoded(picture(400, 600).resize((600, 400)), kind)
    box = (40, 60, 320, 480)
    actual = crop(data, box, max_crop_pixels=320 * 480 // 16)
    assert actual.shape == (80, 120, 3)
    blocks = part(whole(data), box).reshape(80, 4, 120, 4, 3).mean((1, 3))
    assert np.abs(actual - blocks).mean() < 6
    small = (40, 60, 50, 50)
    assert np.array_equal(crop(data, small, max_crop_pixels=10_000), part(whole(data), small))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_large_crops_of_white_images_are_white_to_their_borders(kind: str) -> None:
    for side in range(130, 260, 5):
        data = encoded(Image.new("RGB", (side, side + 3), (255, 255, 255)), kind)
        most = side * (side + 3) // 3
        assert crop(data, (0, 0, side + 3, side), max_crop_pixels=most).min() == 255, side
        assert crop(data, (9, 7, side - 6, side - 7), max_crop_pixels=most // 2).min() == 255, side
