"""Batches in order to the end, what they took, and what is said when a worker or the storage gives up."""

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from imagenet_opt.data.loader import RankInfo, open_index, train_loader
from imagenet_opt.data.prefetcher import DevicePrefetcher
from tests.data.conftest import CPU, MakeLoader, batches, loading

KEYS = {"read_seconds", "decode_seconds", "mb_read", "reads_in_flight", "queue_depth", "queue_seconds", "skipped"}


@pytest.mark.parametrize("workers", [0, 1])
def test_order_and_length_hold_in_the_middle_of_an_epoch(images_root: Path, loader: MakeLoader, workers: int) -> None:
    made = loader(images_root, num_workers=workers)
    made.sampler.seek(2, 4)
    made.sampler.set_epoch(2)
    assert [batch.key[:2] for batch in made] == [(2, 4), (2, 5)]
    assert len(made) == 6
    made.sampler.set_epoch(3)
    assert [batch.key[:2] for batch in made] == [(3, step) for step in range(6)]


@pytest.mark.parametrize("resize_on", ["worker", "device"])
def test_an_epoch_left_early_does_not_spoil_the_next(images_root: Path, loader: MakeLoader, resize_on: str) -> None:
    expected = batches(loader(images_root, resize_on=resize_on), epoch=5)
    made = loader(images_root, num_workers=1, resize_on=resize_on)
    for epoch in range(3):
        made.sampler.seek(epoch, 0)
        for batch in made:
            if batch.key.step == epoch:
                break
    for batch, known in zip(batches(made, epoch=5), expected, strict=True):
        assert torch.equal(batch.images, known.images)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("resize_on", ["worker", "device"])
def test_images_have_the_type_that_was_asked_for(
    images_root: Path, tmp_path: Path, dtype: torch.dtype, resize_on: str
) -> None:
    index = open_index(images_root, "train", tmp_path)
    batch, exact = (
        next(iter(train_loader(index, loading(resize_on=resize_on), RankInfo(device=CPU, dtype=kind))))
        for kind in (dtype, torch.float32)
    )
    assert batch.images.dtype == dtype
    assert torch.equal(batch.images, exact.images.to(dtype))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_batch_took_is_told(images_root: Path, loader: MakeLoader, workers: int) -> None:
    made = loader(images_root, num_workers=workers)
    assert made.pop_metrics() == {}
    seen = torch.cat([batch.indices for batch in batches(made)])
    sizes = [os.path.getsize(made.loader.dataset.reader.store.name(i)) for i in seen.tolist()]
    told = made.pop_metrics()
    assert set(told) == {f"loader/{key}" for key in KEYS}
    assert told["loader/mb_read"] == pytest.approx(sum(sizes) / 1e6 / len(made), rel=1e-6)
    assert 0 < told["loader/decode_seconds"] < 10
    assert 0 <= told["loader/read_seconds"] < 10
    assert 1 <= told["loader/reads_in_flight"] <= 512
    assert 0 <= told["loader/queue_depth"] <= 5  # two ahead, one in hand, one being made, one on its way
    assert 0 <= told["loader/queue_seconds"] < 10
    assert told["loader/skipped"] == 0
    assert made.pop_metrics() == {}


def test_slow_reading_shows_in_its_own_key(images_root: Path, loader: MakeLoader) -> None:
    made = loader(images_root, reads_in_flight=6, added_latency_ms=20)
    batches(made)
    told = made.pop_metrics()
    assert told["loader/read_seconds"] >= 0.02 / len(made)  # nothing was decoded before the first batch was read
    assert told["loader/reads_in_flight"] == 6


class SlowSampler:
    """An image size that is known for the last of six keys only once a worker has made three batches."""

    def __init__(self, made: DevicePrefetcher) -> None:
        self.made, self.num_keys = made, 0

    def __call__(self, epoch: int) -> int:
        self.num_keys += 1
        if self.num_keys % 6 == 0:
            wait_until_made(self.made, self.num_keys - 3)
        return 32


def wait_until_made(made: DevicePrefetcher, num: int) -> None:
    deadline = time.monotonic() + 60
    while made.buffers.num_made < num * made.batch_size:
        assert time.monotonic() < deadline, "the workers make no more batches"
        time.sleep(0.001)


def test_batches_made_before_the_last_key_is_sent_count_as_ready(images_root: Path, loader: MakeLoader) -> None:
    made = loader(images_root, num_workers=1, prefetch_factor=6)
    made.sampler.size_of = SlowSampler(made)
    for epoch in range(2):
        made.sampler.set_epoch(epoch)
        left_early = iter(made)
        for delivered in range(1, 5):
            next(left_early)
            wait_until_made(made, 6 * (epoch + 1))
            assert made.num_ready == 6 - delivered


def test_the_thread_that_copies_first_chooses_its_gpu(
    images_root: Path, loader: MakeLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = []
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: chosen.append((threading.current_thread().name, device, made.num_sent))
    )
    made = loader(images_root, num_workers=1)
    made.num_sent, made.copies = 0, "pageable"
    made._stream = SimpleNamespace(device=torch.device("cuda", 1))
    receive = made.buffers.keep_mapped

    def count(*args: Any) -> None:
        made.num_sent += 1
        receive(*args)

    monkeypatch.setattr(made.buffers, "keep_mapped", count)
    assert len(batches(made)) == 6
    assert chosen == [("batches ahead", torch.device("cuda", 1), 0)]
