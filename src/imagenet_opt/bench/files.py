"""The files of a benchmark: converted copies, which are kept for later benchmarks, and reading all into memory."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from imagenet_opt import machine
from imagenet_opt.data.index.folder_index import FileIndex, scan_split
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.loader import store_of
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.display.progress import progress
from imagenet_opt.errors import BadSample, DataError
from imagenet_opt.measure.storage.page_cache import MOSTLY, probed, sampled_residency
from imagenet_opt.pack.image import PackOptions, prepare
from imagenet_opt.probe.samples import extents_of

_ENCODING = PackOptions(quality=90, reencode="all")
"""The quality at which FFCV writes its own files."""
_IN_FLIGHT = 64
_BLOCK = 1 << 24
_NUM_CHECKED = 200


def fingerprint(program: str, files: Iterable[tuple[object, ...]]) -> str:
    """A hash that changes with every file and with the program that converts. files: for each file its path, then
    other values that matter. Raises OSError."""
    digest = hashlib.sha256(program.encode())
    for path, *values in files:
        about = os.stat(str(path))
        digest.update(os.fsencode("\0".join(map(str, (path, *values, about.st_size, about.st_mtime_ns))) + "\n"))
    return digest.hexdigest()[:24]


def write_once(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder completely or not at all, unless it exists. write: fills an empty folder. Raises OSError."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="new_") as scratch:
        new = Path(scratch, "files")
        new.mkdir()
        write(new)
        try:
            os.replace(new, folder)
        except OSError:
            if not folder.is_dir():  # if the folder exists, another process was faster
                raise


def encoded_again(index: FileIndex, folder: Path) -> FileIndex:
    """The files of `index`, encoded again in a folder below `folder`, so that all loaders read the same bytes.

    Files that cannot be decoded are left out. Raises DataError if nothing can be written.
    """
    try:
        paths = ((index.path(number),) for number in range(len(index)))
        target = folder / f"same-bytes-{fingerprint('', paths)}"
        write_once(target, partial(_encode_all, index))
    except OSError as error:
        raise DataError(f"cannot write the files again (data.cache_dir): {error}") from error
    return scan_split(target, "train")


def _encode_all(index: FileIndex, folder: Path) -> None:
    def write(number: int) -> None:
        with suppress(BadSample):
            encoded, extension = prepare(Path(index.path(number)).read_bytes(), _ENCODING)
            class_folder = folder / "train" / index.classes[index.labels[number]]
            (class_folder / f"{number}.{extension}").write_bytes(encoded)

    for name in index.classes:
        (folder / "train" / name).mkdir(parents=True)
    _for_each("encoding again", write, len(index), num_threads=machine.usable_cpus())


def read_into_memory(index: FileIndex | ShardIndex, loading: LoaderOptions, copies: Iterable[Path]) -> str:
    """Read all samples once, and the converted copies in these folders. Returns the state of the samples in words: in
    memory, unless the file system keeps nothing there."""
    store = store_of(index, replace(loading, added_latency_ms=0.0, max_mb_per_second=None))

    def read(number: int) -> None:
        with suppress(OSError, BadSample):
            store.read_many(np.array([number]))

    _for_each("reading the files into memory", read, len(index), num_threads=_IN_FLIGHT)
    for path in (path for folder in copies for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            while file.read(_BLOCK):
                pass
    rows = np.unique(np.linspace(0, len(index) - 1, _NUM_CHECKED).astype(np.int64))
    extents = extents_of(index, rows)
    share = sampled_residency(extents.__getitem__, len(extents), num=_NUM_CHECKED).share
    share = probed(extents).share if share is None else share
    if share is None:
        return "files read before, unknown whether they are in memory"
    return "files in memory" if share >= MOSTLY else f"files from storage, {100 * share:.0f} % of them in memory"


def _for_each(what: str, work: Callable[[int], None], num: int, *, num_threads: int) -> None:
    """Call `work` with each number below `num`, and show the progress."""
    with ThreadPoolExecutor(num_threads) as threads, progress(what, "images") as show:
        for done, _ in enumerate(threads.map(work, range(num)), 1):
            show(done, num)
