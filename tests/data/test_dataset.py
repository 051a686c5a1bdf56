"""Batches: the pixels of their samples, for files of any kind; bad samples are replaced, the same in any worker."""

import logging
import shutil
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torchvision.transforms.v2.functional import horizontal_flip, normalize, pil_to_tensor, resized_crop

from imagenet_opt.data.decode import nvimagecodec
from imagenet_opt.data.decode.decoder import Decoder
from imagenet_opt.data.prefetcher import BadSamples
from imagenet_opt.data.randomness import key_of, uniform
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.errors import BadSample, TooManyBadSamples
from tests.data.conftest import MakeLoader, assert_equal, batches, encoded, folder_of, torchvision_crop
from tests.data.storage.stores import reading

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")


@pytest.fixture
def copy(images_root: Path, tmp_path: Path) -> Path:
    """A copy of the images, for tests that damage files."""
    return Path(shutil.copytree(images_root, tmp_path / "data with spaces äö"))


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def files_of(root: Path) -> list[Path]:
    """train/ in the order of the index."""
    return sorted((root / "train").glob("*/*.JPEG"))


def expected_image(path: Path, index: int, epoch: int, size: int) -> torch.Tensor:
    """By Pillow and torchvision, from the draws for this epoch and index."""
    with Image.open(path) as image:
        source = pil_to_tensor(image.convert("RGB"))
    draws = uniform(key_of(3, epoch), np.array([index]), 4 * 10 + 1)  # ten tries and the flip
    box = torchvision_crop(source.shape[1], source.shape[2], draws[0, :-1], (0.35, 1.0))
    cropped = resized_crop(source, *box, size=[size, size], antialias=True)
    cropped = horizontal_flip(cropped) if draws[0, -1] < 0.5 else cropped
    return normalize(cropped / 255, list(IMAGENET_DEFAULT_MEAN), list(IMAGENET_DEFAULT_STD))


@pytest.mark.parametrize(("place", "work"), [(RecordStore, time.sleep), (Decoder, compute)])
def test_a_slow_storage_is_found_as_waiting_and_a_slow_decoder_as_computing(
    images_root: Path, loader: MakeLoader, monkeypatch: pytest.MonkeyPatch, place: type, work: Callable[[float], None]
) -> None:
    """40 ms for each of 8 images. The parts of the time are no more than the whole, so no other part has them."""
    method = "read_many" if place is RecordStore else "crop"
    ordinary = getattr(place, method)
    monkeypatch.setattr(place, method, lambda *given: (work(0.04), ordinary(*given))[1])
    made = loader(images_root, num_workers=0, batch_size=8, reads_in_flight=1)
    began = time.perf_counter()
    stats = next(iter(made)).stats
    waits = stats.read_seconds + stats.cpu_wait_seconds
    assert waits + stats.decode_seconds <= time.perf_counter() - began
    assert (waits if place is RecordStore else stats.decode_seconds) > 0.3


@pytest.mark.parametrize(("resize_on", "epoch"), [("worker", 1), ("device", 4)])
def test_images_are_those_of_pillow(images_root: Path, loader: MakeLoader, resize_on: str, epoch: int) -> None:
    batch = batches(loader(images_root, resize_on=resize_on), epoch)[2]
    for row, i in enumerate(batch.indices.tolist()):
        expected = expected_image(files_of(images_root)[i], i, epoch, size=32)
        assert (batch.images[row] - expected).abs().max() <= 3 / 255 / min(
            IMAGENET_DEFAULT_STD
        )  # two builds of libjpeg-turbo
        assert batch.labels[row] == i // 13
    assert batch.valid.all()


def test_a_worker_without_a_region_decoder_decodes_whole_and_one_warning_says_why(
    images_root: Path, loader: MakeLoader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_decoder(**_: object) -> None:
        raise RuntimeError("nvImageCodec failure: '#8'\nand a second line")

    expected = batches(loader(images_root, region_decode=False))
    monkeypatch.setattr("nvidia.nvimgcodec.Decoder", no_decoder)
    monkeypatch.setattr(nvimagecodec, "_codec_of", cache(lambda *_: nvimagecodec.RegionCodec()))
    for _ in range(2):
        assert_equal(batches(loader(images_root, num_workers=2)), expected)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "failure: '#8'" in warning and "\n" not in warning
    assert "data.region_decode=false" in warning


BAD = {0, 9, 17, 25, 30}


def spoil(root: Path) -> Path:
    """One bad file of each kind in train/, after the index was made where there is one."""
    files = files_of(root)
    files[0].write_bytes(b"")
    files[9].write_text("this is no image")
    files[17].write_bytes(files[17].read_bytes()[:200])
    for i in (25, 30):
        files[i].unlink()
    files[25].symlink_to("/nowhere/image.JPEG")
    files[30].symlink_to(files[30])
    return root


def test_any_worker_skips_bad_samples_alike(copy: Path, loader: MakeLoader, caplog: pytest.LogCaptureFixture) -> None:
    loader(copy)  # the index is made, and cached
    spoil(copy)
    options = {"max_bad_fraction": 0.2, "resize_on": "device"}
    expected = batches(loader(copy, **options))
    skipped = {index for batch in expected for index, _ in batch.stats.skipped}
    assert skipped and skipped <= BAD
    assert all(not batch.stats.skipped or len(batch) == 6 for batch in expected)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        made = loader(copy, num_workers=3, **options)
        resumed = batches(made, first=2)
        assert_equal(resumed, expected[2:])
        for batch in resumed:
            assert torch.equal(batch.labels, batch.indices // 13)
            assert not BAD & set(batch.indices.tolist())
        batches(made)
        assert made.pop_metrics()["loader/skipped"] == len(skipped)
    warnings_of_skips = [message for message in caplog.messages if "skipped" in message]
    assert len(warnings_of_skips) == len(skipped)
    assert all("data with spaces äö/train/class" in line for line in warnings_of_skips)


@pytest.mark.parametrize("world_size", [1, 4])
def test_the_limit_of_bad_samples_grows_with_the_part_that_a_process_has_read(world_size: int) -> None:
    """Twenty bad samples are allowed in all; a process reads another share of the data set in each epoch."""
    skips = [(index, f"/data/n{index}.JPEG is empty") for index in range(21)]
    bad = BadSamples(num_samples=1000, max_fraction=0.02, world_size=world_size)
    bad.add(tuple(skips[:5]), 0)
    bad.add(tuple(skips[:20]), 3)
    with pytest.raises(TooManyBadSamples, match=r"^21 bad samples, .* allows 20 of .*n0\.JPEG is empty; .*and 18 more"):
        bad.add(tuple(skips), 90)
    if world_size > 1:
        with pytest.raises(TooManyBadSamples, match=r"^6 bad samples, .* allows 5 of the 250 "):
            BadSamples(num_samples=1000, max_fraction=0.02, world_size=world_size).add(tuple(skips[:6]), 0)


def test_too_many_bad_samples_end_the_run_with_their_names(copy: Path, loader: MakeLoader) -> None:
    loader(copy)
    spoil(copy)
    with pytest.raises(TooManyBadSamples, match=r"data\.max_bad_fraction=0 allows 0 .*class./image"):
        batches(loader(copy, max_bad_fraction=0.0))
    made = loader(copy, max_bad_fraction=1.0)
    for file in files_of(copy):
        file.unlink()
        file.write_bytes(b"")
    with pytest.raises(BadSample, match="is empty"):  # because no replacement can be opened
        batches(made)


def test_a_worker_holds_one_whole_image_and_the_files_of_few(tmp_path: Path, loader: MakeLoader) -> None:
    """Peak memory of NumPy arrays and files while a batch is made again; the batch itself is memory of torch."""
    plain = [encoded(Image.new("RGB", (500, 400), (i, 2 * i, 3 * i)), "PNG") for i in range(12)]
    levels = np.random.default_rng(0).integers(0, 256, (600, 600, 3), np.uint8)
    noise, large = encoded(Image.fromarray(levels[:200, :200]), quality=95), encoded(Image.fromarray(levels), "PNG")
    for images, limit, most in (
        (plain, 2**27, 3 * 500 * 400 * 4),  # pixels, with copies during decoding; the batch has twelve images
        ([noise] * 256, 2**27, 3 * 32 * len(noise)),  # files in decoding and files that are read ahead, of 256
        ([large] * 20, 8 * len(large), 14 * len(large)),  # files up to the limit, and the pixels of one
    ):
        made = loader(folder_of(tmp_path / str(most), *images), batch_size=len(images), reads_in_flight=1)
        dataset, key = made.loader.dataset, next(iter(made.sampler))
        dataset = replace(dataset, reader=reading(dataset.reader.store, reads_in_flight=1, max_bytes=limit))
        dataset[key]  # imports modules and fills caches
        tracemalloc.start()
        try:
            dataset[key]
            assert tracemalloc.get_traced_memory()[1] < most
        finally:
            tracemalloc.stop()
