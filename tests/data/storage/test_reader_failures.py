"""Reads that fail, hang or recover: retries, and errors that end the run."""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.loader import store_of
from imagenet_opt.errors import BadSample, ReadTimeout, StorageFailed
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from tests.conftest import loading
from tests.data.storage.stores import Numbers, batch, reading, texts


def failing(code: int, message: str, *indices: int, times: int = 10**6) -> Callable[[int], None]:
    """Reads of these samples (of all, without indices) fail, `times` times in all."""
    left = iter(range(times))

    def each(index: int) -> None:
        if (index in indices or not indices) and next(left, None) is not None:
            raise OSError(code, message)

    return each


class Hanging:
    """Reads of one sample hang until the end of the test; the first read, or each."""

    def __init__(self, answer: threading.Event) -> None:
        self.answer, self.begun = answer, threading.Event()
        self.calls: list[int] = []
        self.index, self.each = -1, False

    def __call__(self, index: int) -> None:
        self.calls.append(index)
        if index == self.index and (self.each or self.calls.count(index) == 1):
            self.begun.set()
            self.answer.wait(30)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    answer = threading.Event()
    yield Hanging(answer)
    answer.set()


@pytest.mark.parametrize(
    ("group", "code", "key"),
    [(1, errno.ENOENT, "data.root"), (4, errno.EIO, "data.root"), (1, errno.EBUSY, "data.reads_in_flight")],
)
def test_a_file_that_fails_alone_is_a_bad_sample(group: int, code: int, key: str) -> None:
    store = Numbers(failing(code, os.strerror(code), 5), group)
    samples = reading(store, reads_in_flight=2, timeout_seconds=1.0).read((0, 0), np.arange(8)).samples
    assert isinstance(samples[5], BadSample)
    assert str(samples[5]).startswith(f"cannot read /proc/sample5: {os.strerror(code)}; ")
    assert key in str(samples[5])
    assert [sample for i, sample in enumerate(samples) if i != 5] == texts(np.array([0, 1, 2, 3, 4, 6, 7]))


@pytest.mark.parametrize(("reads_in_flight", "group"), [(5, 4), ("auto", 1)])
def test_storage_that_fails_as_a_whole_ends_the_run_with_one_line(reads_in_flight: int | str, group: int) -> None:
    reader = reading(Numbers(group=group), reads_in_flight=reads_in_flight, timeout_seconds=0.4)
    reader.read((0, 0), batch(0))
    reader.store.each = failing(errno.EIO, "Input/output error")
    words = r"/proc .*fails: Input/output error for 0\.2 s, reading /proc/sample\d+"
    with pytest.raises(StorageFailed, match=words) as error:
        reader.read((0, 1), batch(1))
    assert "data.read_timeout=0.4" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("packed", [False, True])
def test_storage_that_went_away_is_waited_for_and_called_that(packed: bool, images_root: Path, tmp_path: Path) -> None:
    shutil.copytree(images_root, root := tmp_path / "data")
    if packed:
        pack(root, root := tmp_path / "packed", PackOptions())
    store = store_of(open_index(root, "train", tmp_path / "cache"), loading())
    root.rename(tmp_path / "away")
    back = threading.Timer(0.3, (tmp_path / "away").rename, [root])
    back.start()
    assert len(reading(store, reads_in_flight=2, timeout_seconds=20.0).read((0, 0), np.arange(8)).samples[7]) > 99
    back.join()
    store = store_of(open_index(root, "train", tmp_path / "cache"), loading())
    root.rename(tmp_path / "away")
    with pytest.raises(StorageFailed, match=rf"{root}/train has disappeared .*data\.read_timeout"):
        reading(store, reads_in_flight=2, timeout_seconds=0.2).read((0, 0), np.arange(8))


def test_a_request_that_hangs_twice_ends_the_run(hanging: Hanging, caplog: pytest.LogCaptureFixture) -> None:
    hanging.index, hanging.each = 3, True
    reader = reading(Numbers(hanging), reads_in_flight=4, timeout_seconds=0.2)
    with pytest.raises(ReadTimeout, match=r"/proc/sample3 on /proc .*read_time"):
        reader.read((0, 0), np.arange(8))
    assert "reading /proc/sample3; repeating the request" in caplog.text


@pytest.mark.parametrize("reads_in_flight", [1, 4])
def test_a_request_that_hangs_once_delays_no_other(
    hanging: Hanging, reads_in_flight: int, caplog: pytest.LogCaptureFixture
) -> None:
    hanging.index = 3
    reader = reading(Numbers(hanging), reads_in_flight=reads_in_flight, timeout_seconds=0.3)
    for step in range(4):
        result = reader.read((0, step), batch(step), [((0, step + 1), batch(step + 1))])
        assert result.samples == texts(batch(step))
    assert "reading /proc/sample3; repeating the request" in caplog.text
