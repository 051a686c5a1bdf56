"""Errors of workers, storage and memory end the run with one line that says the remedy."""

import ctypes
import errno
import os
import re
import resource
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from imagenet_opt.data.batch import to_images
from imagenet_opt.data.budget import fit_loader
from imagenet_opt.data.device_copies import DeviceCopies
from imagenet_opt.data.keys import BatchKey, BatchKeySampler
from imagenet_opt.data.prefetcher import BadSamples, DevicePrefetcher
from imagenet_opt.data.shared_buffers import SharedBufferPool
from imagenet_opt.data.transforms.resize import ImageFormat
from imagenet_opt.errors import BadSample, OutOfMemory, StorageFailed, WorkerDied
from tests.data.conftest import CPU, MakeLoader, batches, end_of


def test_a_device_without_room_for_a_batch_ends_the_run(images_root: Path, loader: MakeLoader) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    made = loader(images_root, num_workers=1)
    made.finish = full
    with pytest.raises(OutOfMemory, match=r"on its way to the device \(CUDA.*GiB\.\); lower data\.batch_size"):
        batches(made)


class Items(Dataset):
    """Makes each item by a call."""

    def __init__(self, make: Callable[[], None]) -> None:
        self.make = make

    def __getitem__(self, key: BatchKey) -> None:
        self.make()


def wrapped(make: Callable[[], None], **options: Any) -> DevicePrefetcher:
    keys = BatchKeySampler(num_batches=3, size_of=lambda epoch: 32)
    buffers = SharedBufferPool(num_workers=1, depth=2)
    return DevicePrefetcher(
        DataLoader(Items(make), batch_size=None, sampler=keys, **options),
        keys,
        fingerprint={},
        batch_size=1,
        copies=DeviceCopies(CPU, "ahead", buffers),
        finish=partial(to_images, format=ImageFormat()),
        bad=BadSamples(num_samples=3, max_fraction=0),
        buffers=buffers,
        budget=fit_loader(num_workers=1, prefetch_factor=2, batch_bytes=0),
    )


@pytest.mark.parametrize("kind", [BadSample, ConnectionResetError])
def test_errors_of_this_project_come_from_a_worker_without_traceback(kind: type[Exception]) -> None:
    message = "/data/x.JPEG: what happened"

    def fail() -> None:
        raise kind(message)

    error = end_of(lambda: list(wrapped(fail, num_workers=1)))
    assert type(error) is kind
    assert str(error) == message if kind is BadSample else "Traceback" in str(error) and "what happened" in str(error)


def test_storage_that_fails_ends_the_run(
    images_root: Path, loader: MakeLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, opened = loader(images_root, num_workers=1, read_timeout=1, max_bad_fraction=1), os.open

    def fail(path: Any, *arguments: Any, **options: Any) -> int:
        if os.fspath(path).endswith(".JPEG"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", fail)
    error = end_of(lambda: batches(made))
    assert isinstance(error, StorageFailed)
    words = r".* fails: Stale file handle for 0\.5 s, reading .*JPEG and other files; .*data\.read_timeout=1 s: .*"
    assert re.fullmatch(words, str(error))


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
