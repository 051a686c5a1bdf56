"""Crops of encoded images: the same bits as a whole decode, and a way out for whatever is odd."""

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image

from imagenet_opt.data.decode import Decoder
from imagenet_opt.errors import BadSample

BOX = (7, 5, 20, 31)


def picture(height: int, width: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Smooth colours with some noise."""
    rng = np.random.default_rng(seed)
    ramps = np.stack(
        [np.add.outer(np.arange(height) * a, np.arange(width) * b) for a, b in ((3, 1), (1, 4), (2, 2))], -1
    )
    noisy = (ramps % 256 * 0.8 + rng.integers(0, 50, (height, width, 3))).astype(np.uint8)
    return Image.fromarray(noisy).convert(mode)


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def crop(data: bytes, box: tuple[int, int, int, int] = BOX, **options) -> np.ndarray:
    decoder = Decoder(**options)
    return decoder.crop(decoder.open(data, "some.JPEG"), box).copy()


def whole(data: bytes, **options) -> np.ndarray:
    found = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB, **options)
    return found.permute(1, 2, 0).numpy()


def part(pixels: np.ndarray, box: tuple[int, int, int, int] = BOX) -> np.ndarray:
    top, left, height, width = box
    return pixels[top : top + height, left : left + width]


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("size", [(48, 64), (41, 53), (160, 227)])
def test_ordinary_jpegs_are_decoded_bit_for_bit(subsampling: int, progressive: bool, size: tuple[int, int]) -> None:
    data = encoded(picture(*size), quality=85, subsampling=subsampling, progressive=progressive)
    rng = np.random.default_rng(1)
    decoder = Decoder()
    image = decoder.open(data, "some.JPEG")
    assert (image.height, image.width) == size
    assert image.stream is not None
    for _ in range(20):
        height, width = (int(rng.integers(1, n + 1)) for n in size)
        box = int(rng.integers(size[0] - height + 1)), int(rng.integers(size[1] - width + 1)), height, width
        assert np.array_equal(decoder.crop(image, box), part(whole(data), box)), box


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
    ],
)
def test_other_files_under_a_jpegs_name_are_decoded_whole(mode: str, kind: str, options: dict) -> None:
    image = picture(48, 64, mode)
    found = crop(encoded(image, kind, **options))
    expected = part(np.asarray(Image.open(io.BytesIO(encoded(image, kind, **options))).convert("RGB")))
    assert found.shape == expected.shape == (20, 31, 3)
    assert np.abs(found.astype(int) - expected).mean() < 6  # how CMYK becomes RGB is a matter of taste


def test_sixteen_bits_become_eight() -> None:
    levels = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16)
    found = crop(encoded(Image.fromarray(levels), "PNG"))
    assert np.abs(found[..., 0].astype(int) - part(levels) // 257).max() <= 1


def test_exif_turns_only_when_asked() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter
    data = encoded(picture(48, 64), exif=exif)
    assert np.array_equal(crop(data), part(whole(data)))
    decoder = Decoder(exif_rotation=True)
    image = decoder.open(data, "some.JPEG")
    assert (image.height, image.width) == (64, 48)
    assert np.array_equal(decoder.crop(image, BOX), part(np.rot90(whole(data), k=-1)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"<html>404</html>", "no image that any decoder knows"),
        (encoded(picture(48, 64))[:-300], "some.JPEG"),
        (encoded(picture(48, 64))[:100], "some.JPEG"),
        (encoded(picture(48, 64), "PNG")[:500], "some.JPEG"),
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


def test_twenty_thousand_pixels_take_little_memory() -> None:
    command = (
        "import sys, resource; from imagenet_opt.data.decode import Decoder;"
        "data = sys.stdin.buffer.read(); decoder = Decoder();"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "image = decoder.open(data, 'large'); pixels = decoder.crop(image, (0, 0, 20000, 20000));"
        "print(pixels.size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    data = encoded(Image.new("RGB", (20000, 20000), (10, 200, 30)), quality=50)
    done = subprocess.run([sys.executable, "-c", command], input=data, capture_output=True, timeout=120, check=True)
    num_bytes, grown_kib = map(int, done.stdout.split())
    assert num_bytes <= 3 * 2**22
    assert grown_kib * 1024 < 300e6  # of 1.2 GB


def test_a_decompression_bomb_is_refused() -> None:
    data = encoded(Image.new("RGB", (8, 8)), "PNG")
    header = b"IHDR" + struct.pack(">II", 60_000, 60_000) + data[24:29]
    with pytest.raises(BadSample, match="exceeds limit"):
        crop(data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:])
