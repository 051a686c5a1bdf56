"""Damaged, huge and hostile images: an error that names the file, little memory, and no crash."""

import struct
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagenet_opt.errors import BadSample
from imagenet_opt.measure.telemetry.peak_memory import peak_gib
from tests.conftest import stating
from tests.data.conftest import CPU, MakeLoader, batches, encoded, end_of, folder_of, picture
from tests.data.decode.crops import crop, decoding, part, whole


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"<html>404</html>", "no decoder knows this file format"),
        (encoded(picture(48, 64))[:-300], "some.JPEG"),
        (encoded(picture(48, 64))[:100], "some.JPEG"),
        (encoded(picture(48, 64), "PNG")[:500], "some.JPEG"),
        (encoded(picture(48, 64), "GIF")[:30], "some.JPEG"),
        (stating(encoded(picture(48, 64)), height=0), "some.JPEG"),
        (stating(encoded(picture(48, 64)), width=0), "some.JPEG"),
        (encoded(Image.fromarray(np.full((48, 64), 0.5, np.float32)), "TIFF"), "32 bits per channel"),
        (encoded(Image.fromarray(np.full((48, 64), 200, np.int32)), "TIFF"), "32 bits per channel"),
    ],
)
def test_files_that_no_decoder_opens_are_named(data: bytes, words: str) -> None:
    with pytest.raises(BadSample, match=words) as caught:
        crop(data, (0, 0, 1, 1))
    assert "some.JPEG" in str(caught.value)
    assert "data.root" in str(caught.value)


def test_padding_behind_the_end_does_no_harm() -> None:
    data = encoded(picture(48, 64))
    for more in (b"\0" * 100, b"\0" * 5000, b"junk" * 1000):
        assert np.array_equal(crop(data + more), part(whole(data)))


def test_a_crop_takes_its_own_memory_and_a_large_crop_takes_little() -> None:
    """Peaks in another process: of a small crop of 10,000 x 10,000 pixels, and then of all of them."""
    data = encoded(Image.new("RGB", (10000, 10000), (10, 200, 30)), quality=50)

    def work() -> None:
        decoder, sizes = decoding(), []
        image, peaks = decoder.open(data, "large"), [peak_gib(CPU)]
        for box in ((7000, 7000, 300, 300), (0, 0, 10000, 10000)):
            sizes.append(decoder.crop(image, box).size)
            peaks.append(peak_gib(CPU))
        raise LookupError(*sizes, *(1074 * (after - before) for before, after in pairwise(peaks)))

    small, large, small_mb, large_mb = end_of(work).args
    assert small == 3 * 300 * 300 and large <= 3 * 2**22
    assert small_mb < 50 and large_mb < 150  # of 300


def claiming(side: int, kind: str, scans: int = 1, **options) -> bytes:
    """A small file whose header states `side` x `side` pixels. scans: how often the last scan comes."""
    data = bytearray(encoded(picture(48, 64), kind, **options))
    if kind == "PNG":
        header = b"IHDR" + struct.pack(">II", side, side) + data[24:29]
        return bytes(data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:])
    if kind == "WEBP":  # 14 bits each of width - 1 and height - 1, after the mark of lossless data
        start = data.index(b"VP8L") + 9
        rest = int.from_bytes(data[start : start + 4], "little") >> 28 << 28
        data[start : start + 4] = (rest | (side - 1) << 14 | side - 1).to_bytes(4, "little")
        return bytes(data)
    data[:] = stating(bytes(data), height=side, width=side)
    return bytes(data[:-2] + data[data.rindex(b"\xff\xda") : -2] * (scans - 1) + data[-2:])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (claiming(60_000, "PNG"), "the header claims 60000 x 60000 pixels"),
        (claiming(60_000, "JPEG"), "the header claims 60000 x 60000 pixels"),
        (claiming(60_000, "JPEG", progressive=True), "the header claims 60000 x 60000 pixels"),
        (claiming(12_000, "PNG"), r"data\.max_pixels=100000000"),
        (claiming(13_000, "WEBP", lossless=True), r"data\.max_pixels=100000000"),
        (claiming(23_170, "JPEG"), r"data\.max_pixels=100000000"),
        (claiming(9_000, "JPEG"), "9000 x 9000 pixels, but the file has only"),
        (claiming(4_000, "JPEG", scans=3000, progressive=True), "scans would take long"),
    ],
    ids=range(8),
)
def test_small_files_that_would_take_gigabytes_or_minutes_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(BadSample, match=rf"some\.JPEG: .*{words}.*data\.root"):
        crop(data, (0, 0, 9, 9))


def test_slow_and_damaged_images_that_train_are_named_once(
    tmp_path: Path,
    loader: MakeLoader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The codec would print its warning of a damaged image for each crop, without a name."""
    root = folder_of(tmp_path / "damaged", *(whole := [encoded(picture(48, 64, seed=i)) for i in range(8)]))
    gap = root / "train/a/3.jpg"
    gap.write_bytes(whole[3][: len(whole[3]) // 2] + whole[3][-2:])
    made = loader(root, batch_size=4, num_workers=2)
    assert [len(batches(made, epoch)) for epoch in range(2)] == [2, 2] and not made.bad.reasons
    assert [str(gap) in message for message in caplog.messages if "damaged" in message] == [True]
    monkeypatch.setattr("imagenet_opt.data.decode.decoder.SLOW_SECONDS", -1.0)
    made = loader(root, batch_size=4, num_workers=0)
    assert [len(batches(made, epoch)) for epoch in range(2)] == [2, 2]
    slow = [message.partition(":")[0] for message in caplog.messages if "takes over" in message]
    assert sorted(slow) == [f"{root}/train/a/{i}.jpg" for i in range(8)]
    assert "JPEG data" not in capfd.readouterr().err


def test_many_scans_of_a_small_image_are_decoded() -> None:
    assert crop(claiming(48, "JPEG", scans=300, progressive=True), (0, 0, 48, 48)).shape == (48, 48, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_a_damaged_image_is_refused_by_name_or_decoded(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    """capfd: libraries write to file descriptor 2."""
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
