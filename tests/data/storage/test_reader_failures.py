"""Reads that fail, hang or recover: retries, errors that end the run, and files that are none."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.data.storage.retry import retry_transient
from imagenet_opt.errors import BadSample, ReadTimeout, StorageFailed
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from tests.conftest import loading
from tests.data.storage.stores import Samples, batch, reading, texts


def failing(code: int, message: str, *indices: int, times: int = 10**6) -> Callable[[int], None]:
    """Reads of these samples (of all, without indices) fail, `times` times in all."""
    left = iter(range(times))

    def each(index: int) -> None:
        if (index in indices or not indices) and next(left, None) is not None:
            raise OSError(code, message)

    return each


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EBUSY, errno.EMFILE])
def test_a_temporary_error_is_retried_with_a_warning(code: int, caplog: pytest.LogCaptureFixture) -> None:
    reader = reading(Samples(failing(code, os.strerror(code), times=1)))
    assert reader.read((0, 0), batch(0)).samples == texts(batch(0))
    assert f"{os.strerror(code)}; retrying for up to 30 s" in caplog.text
    assert reader.take_events()["retries"] == 1


def test_an_error_after_a_long_read_is_retried() -> None:
    """A soft NFS mount gives up only after minutes: the patience begins with the first error, not with the read."""
    fail = failing(errno.ETIMEDOUT, "too late", times=1)
    assert retry_transient(lambda: (time.sleep(0.3), fail(0), b"bytes")[-1], "x", 0.2) == b"bytes"


@pytest.mark.parametrize(
    ("group", "code", "times", "key"),
    [
        (1, errno.ENOENT, 1, "data.root"),
        (4, errno.EIO, 10**6, "data.root"),
        (1, errno.EBUSY, 10**6, "data.reads_in_flight"),
    ],
)
def test_a_file_that_fails_alone_is_a_bad_sample(group: int, code: int, times: int, key: str) -> None:
    """Other errors than temporary ones are not retried."""
    store = Samples(failing(code, os.strerror(code), 5, times=times), group)
    samples = reading(store, reads_in_flight=2, timeout_seconds=1.0).read((0, 0), np.arange(8)).samples
    assert isinstance(samples[5], BadSample)
    assert str(samples[5]).startswith(f"cannot read /proc/sample5: {os.strerror(code)}; ") and key in str(samples[5])
    assert [sample for i, sample in enumerate(samples) if i != 5] == texts(np.array([0, 1, 2, 3, 4, 6, 7]))


@pytest.mark.parametrize(("reads_in_flight", "group"), [(5, 4), ("auto", 1)])
def test_storage_that_fails_as_a_whole_ends_the_run_with_one_line(reads_in_flight: int | str, group: int) -> None:
    reader = reading(Samples(group=group), reads_in_flight=reads_in_flight, timeout_seconds=0.4)
    reader.read((0, 0), batch(0))
    reader.store.each = failing(errno.EIO, "Input/output error")
    words = r"/proc .*fails: Input/output error for 0\.2 s, reading /proc/sample\d+"
    with pytest.raises(StorageFailed, match=words) as error:
        reader.read((0, 1), batch(1))
    assert "data.read_timeout=0.4" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("packed", [False, True])
def test_storage_that_went_away_is_waited_for_and_called_that(packed: bool, images_root: Path, tmp_path: Path) -> None:
    shutil.copytree(images_root, root := tmp_path / "data")
    if packed:
        pack(root, root := tmp_path / "packed", PackOptions())
    store = store_of(open_index(root, "train", tmp_path / "cache"), loading())
    root.rename(tmp_path / "away")
    back = threading.Timer(0.3, (tmp_path / "away").rename, [root])
    back.start()
    assert len(reading(store, reads_in_flight=2, timeout_seconds=120.0).read((0, 0), np.arange(8)).samples[7]) > 99
    back.join()
    store = store_of(open_index(root, "train", tmp_path / "cache"), loading())
    root.rename(tmp_path / "away")
    with pytest.raises(StorageFailed, match=rf"{root}/train has disappeared .*data\.read_timeout"):
        reading(store, reads_in_flight=2, timeout_seconds=0.2).read((0, 0), np.arange(8))


@pytest.mark.parametrize(("reads_in_flight", "times"), [(1, 1), (4, 9)])
def test_a_hanging_request_is_repeated_once(reads_in_flight: int, times: int, caplog: pytest.LogCaptureFixture) -> None:
    answer, left = threading.Event(), iter(range(times))

    def each(index: int) -> None:
        if index == 3 and next(left, None) is not None:
            answer.wait()

    reader = reading(Samples(each), reads_in_flight=reads_in_flight, timeout_seconds=2.0)
    try:
        if times > 1:
            with pytest.raises(ReadTimeout, match=r"/proc/sample3 on /proc .*read_time"):
                reader.read((0, 0), batch(0))
        else:
            for step in range(4):
                result = reader.read((0, step), batch(step), [((0, step + 1), batch(step + 1))])
                assert result.samples == texts(batch(step))
        assert "reading /proc/sample3; repeating the request" in caplog.text
    finally:
        answer.set()


@pytest.mark.parametrize(
    ("code", "make"),
    [
        (errno.ENOENT, lambda file: None),
        (errno.EISDIR, Path.mkdir),
        (errno.ELOOP, lambda file: file.symlink_to(file)),
        (errno.ENXIO, lambda file: file.symlink_to("/dev/zero")),
        (errno.ENXIO, os.mkfifo),
        (errno.EFBIG, lambda file: (file.touch(), os.truncate(file, 2**40))),
        (errno.EACCES, lambda file: file.touch(mode=0)),
    ],
)
def test_errors_of_the_system_are_raised(code: int, make: Callable[[Path], object], tmp_path: Path) -> None:
    if code == errno.EACCES and os.geteuid() == 0:
        pytest.skip("root reads every file")
    (file := tmp_path / "data/train/a/x.JPEG").parent.mkdir(parents=True)
    file.touch()
    index = open_index(tmp_path / "data", "train", tmp_path / "cache")
    file.unlink()
    make(file)
    with pytest.raises(OSError) as caught:
        RecordStore(index).read_many(np.array([0]))
    assert caught.value.errno == code
