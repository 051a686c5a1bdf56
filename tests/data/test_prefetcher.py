"""The prefetcher: batches in order to the end, metrics of the loader, and errors of workers in one line."""

import ctypes
import itertools
import os
import re
import resource
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from imagenet_opt.errors import BadSample, WorkerDied
from tests.data.conftest import MakeLoader, batches, encoded, end_of, folder_of, picture

TIMES = {"read_seconds", "decode_seconds", "cpu_wait_seconds", "queue_seconds"}
KEYS = {*TIMES, "mb_read", "reads_in_flight", "queue_depth", "skipped", "retries", "throttled"}


@pytest.mark.parametrize("workers", [0, 1])
def test_order_and_length_hold_in_the_middle_of_an_epoch(images_root: Path, loader: MakeLoader, workers: int) -> None:
    made = loader(images_root, num_workers=workers)
    made.sampler.seek(2, 4)
    made.sampler.set_epoch(2)
    assert [batch.key[:2] for batch in made] == [(2, 4), (2, 5)]
    assert len(made) == 6
    assert [batch.key[:2] for batch in made] == [(3, step) for step in range(6)]  # the next epoch
    assert [batch.key[:2] for batch in itertools.islice(made, 2)] == [(4, 0), (4, 1)]
    assert [made.state_dict()[name] for name in ("epoch", "step")] == [4, 2]
    assert [batch.key[:2] for batch in itertools.islice(made, 6)] == [(4, step) for step in range(6)]
    assert next(iter(made)).key[:2] == (5, 0)  # epoch 4 has come to its end, without a seventh request
    for _ in range(2):
        made.set_epoch(2)
        assert [batch.key[:2] for batch in made] == [(2, step) for step in range(6)]
    first, second = iter(made), iter(made)
    assert next(first).key[:2] == next(second).key[:2] == (3, 0)
    with pytest.raises(RuntimeError, match="a later iteration of this loader"):
        next(first)
    assert [batch.key[:2] for batch in second] == [(3, step) for step in range(1, 6)]


@pytest.mark.parametrize("workers", [0, 1])
def test_metrics_are_means_over_new_batches(images_root: Path, loader: MakeLoader, workers: int) -> None:
    made = loader(images_root, num_workers=workers)
    assert made.pop_metrics() == {}
    indices = torch.cat([batch.indices for batch in batches(made)])
    sizes = [os.path.getsize(made.path(i)) for i in indices.tolist()]
    metrics = made.pop_metrics()
    assert set(metrics) == {f"loader/{key}" for key in KEYS} and min(metrics.values()) >= 0
    assert metrics["loader/mb_read"] == pytest.approx(sum(sizes) / 1e6 / len(made), rel=1e-6)
    assert 1 <= metrics["loader/reads_in_flight"] <= 512
    assert metrics["loader/queue_depth"] <= 5  # two ahead, one in use, one in the making, one on its way
    assert metrics["loader/skipped"] == metrics["loader/retries"] == metrics["loader/throttled"] == 0
    assert made.pop_metrics() == {}


def test_an_error_of_a_worker_is_one_line(tmp_path: Path, loader: MakeLoader) -> None:
    root = folder_of(tmp_path / "data", *[encoded(picture(48, 64))] * 3, b"no image")
    with pytest.raises(BadSample, match=r"^cannot decode .*/a/3\.jpg: no decoder .*\(data\.root\)$"):
        batches(loader(root, batch_size=4, num_workers=1, on_bad_sample="raise"))


def test_too_many_open_files_end_the_run_with_the_remedy(images_root: Path, loader: MakeLoader) -> None:
    """Each batch that is kept holds a file; torch's own text advises another sharing strategy."""

    def work() -> None:
        actual = iter(loader(images_root, num_workers=1, batch_size=1))
        kept = [next(actual)]
        fill_gaps = [os.dup(0) for _ in range(200)]  # the limit is for numbers of files; closed files left gaps
        limit = max(fill_gaps) + 6
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        kept.extend(actual)

    error = end_of(work)
    assert isinstance(error, WorkerDied)
    assert re.fullmatch(r"too many open files: .*lower data\.num_workers or data\.prefetch_factor, .*", str(error))


def test_full_shared_memory_ends_the_run(images_root: Path, loader: MakeLoader) -> None:
    """/dev/shm has 24 MiB, and fills up during the run."""

    def work() -> None:
        libc, (new_mounts, private) = ctypes.CDLL(None), (0x20000, 0x44000)  # CLONE_NEWNS, MS_REC | MS_PRIVATE
        small = (b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=24m")
        if libc.unshare(new_mounts) or libc.mount(None, b"/", None, private, None) or libc.mount(*small):
            raise PermissionError
        actual = iter(made := loader(images_root, num_workers=1))
        next(actual)
        with open("/dev/shm/other", "wb", buffering=0) as other, suppress(OSError):
            while True:
                other.write(bytes(2**16))
        for epoch in range(1_000_000):
            made.sampler.set_epoch(epoch)
            list(made)

    error = end_of(work)
    if isinstance(error, PermissionError):
        pytest.skip("mounting a small /dev/shm is not allowed here")
    assert "found /dev/shm full; lower data.num_workers" in str(error) and "or enlarge /dev/shm" in str(error)
