"""Images to pack: those that training reads, a tar file per class, or a flat folder with a list of labels."""

import io
import os
import tarfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.flat_folder import open_flat
from imagenet_opt.data.index.layout import foreign_tars, is_image, split_place
from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.shard_index import is_packed
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.storage.read_pool import ReadPool, ReadTask, Sample
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.data.storage.retry import TRANSIENT, is_out, retry_transient
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.errors import (
    ConfigError,
    DataError,
    DatasetNotFound,
    EmptyClass,
    StorageFailed,
)
from imagenet_opt.regular_file import MOST_BYTES, open_regular

READ_TIMEOUT = 120.0
"""Default of data.read_timeout, in seconds. Reads that fail are repeated for half of this time."""
_READS_IN_FLIGHT, _THREADS = 16, 32
_HEADER_BYTES = 2**16
_CLASS_TARS = ({"archive"}, {"archive", "image"})
"""Kinds of entries of a folder with a tar file for each class."""


def open_train(root: Path | str, split: str, cache_dir: Path) -> Split:
    """Open `root`/`split` as for training, or with a tar file per class. Raises DatasetNotFound, EmptyClass, DataError;
    ConfigError for a pack."""
    if isinstance(root, Path) and _kinds(folder := split_place(root, split)) in _CLASS_TARS:
        return _open_archives(folder)
    found = open_index(root, split, cache_dir)
    if len(found.checksums):
        raise ConfigError(f"{found.place} is packed already; set data.root to the folder with the original images")
    return found


def open_val(root: Path | str, split: str, labels: Path | None, cache_dir: Path) -> Split:
    """Open val as `open_train` does. labels: a list of the classes of images in a flat folder, see `open_flat`."""
    if labels is None:
        return open_train(root, split, cache_dir)
    if isinstance(root, str) or _kinds(folder := split_place(root, split)) != {"image"}:
        raise ConfigError(
            f"val_labels={labels} is for images directly in a folder, but {root}/{split} is a URL, or has subfolders "
            "or archives: leave val_labels out"
        )
    return open_flat(folder, labels)


def _kinds(folder: Path) -> set[str]:
    """The kinds of entries in a folder: folder, archive, image; none for a pack."""
    if not folder.is_dir() or is_packed(folder):
        return set()
    return {
        "folder" if e.is_dir() else "image" if is_image(e.name) else "archive"
        for e in os.scandir(folder)
        if e.is_dir() or is_image(e.name) or e.name.lower().endswith(".tar")
    }


def _open_archives(folder: Path) -> Split:
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".tar")
    if foreign := foreign_tars([path.name for path in paths], folder):
        raise DatasetNotFound(f"{foreign} (data.root)")
    with ThreadPoolExecutor(_THREADS) as threads:
        archives = list(threads.map(_members, paths))
    members = [member for archive in archives for member in archive]
    labels = np.repeat(np.arange(len(paths), dtype=np.int32), [len(archive) for archive in archives])
    offsets, sizes = (np.array([member[i] for member in members], dtype=np.int64) for i in (1, 2))
    return Split(
        place=str(folder),
        classes=tuple(path.stem for path in paths),
        labels=labels,
        **joined([name for name, _, _ in members]),
        sizes=sizes,
        containers=tuple(path.name for path in paths),
        container_ids=labels,
        offsets=offsets,
    )


def _members(path: Path) -> list[tuple[bytes, int, int]]:
    """Name, offset and size of each image in a tar file. Raises EmptyClass; DataError for a damaged file."""
    try:
        images = retry_transient(lambda: _read_members(path), str(path), READ_TIMEOUT / 2)
    except OSError as error:
        raise DataError(f"cannot read {path} (data.root): {error.strerror}") from error
    except (ValueError, RecursionError, tarfile.TarError) as error:
        raise DataError(f"{path} is truncated or not a tar file ({error}); download it again (data.root)") from error
    if not images:
        raise EmptyClass(f"no images in {path}; remove the file or download it again (data.root)")
    return images


def _read_members(path: Path) -> list[tuple[bytes, int, int]]:
    with _Headers(open(path, "rb", 0, opener=open_regular)) as file, tarfile.open(fileobj=file, mode="r:") as archive:
        num_bytes = os.fstat(file.fileno()).st_size
        images = [image for member in archive if (image := _image(member, num_bytes))]
        file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("no end mark")
    return images


class _Headers(io.BufferedReader):
    """A tar file of which only headers are read. No header needs more than 64 KiB: extended ones hold a path."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _HEADER_BYTES:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        return super().read(size)


def _image(member: tarfile.TarInfo, num_bytes: int) -> tuple[bytes, int, int] | None:
    """Name, offset and size of a member; None for a member that has no image suffix. num_bytes: size of the tar file.

    Raises tarfile.ReadError for a member whose data lie outside of the file, or whose path is outside of the archive.
    """
    name = os.path.normpath(member.name)
    if not 0 <= member.size <= num_bytes - member.offset_data:
        raise tarfile.ReadError(f"{name!r} claims {member.size} bytes, more than the file has")
    if member.isdir() or not is_image(name):
        return None
    if os.path.isabs(name) or name.startswith("../"):
        raise tarfile.ReadError(f"the path {name!r} lies outside of the archive")
    if not member.isfile() or member.issparse():
        raise tarfile.ReadError(f"{name!r} is a link or a sparse file")
    return os.fsencode(name), member.offset_data, member.size


def read_images(index: Split, read_timeout: float) -> Iterator[Sample]:
    """The images in order; several are read at a time. One that cannot be read is a BadSample.

    Raises StorageFailed, ReadTimeout if the storage fails.
    """
    pool = ReadPool(RecordStore(index), timeout_seconds=read_timeout, max_bytes=2 * MOST_BYTES)
    running: deque[ReadTask] = deque()

    def finish() -> Sample:
        ((sample,),) = pool.answer(running.popleft())
        return sample

    for row in np.arange(len(index))[:, None]:
        running.append(pool.start([np.array([0])], [row], _READS_IN_FLIGHT, stop_when_slow=False))
        if len(running) > _READS_IN_FLIGHT:
            yield finish()
    while running:
        yield finish()


def name_of(index: Split, i: int) -> str:
    """Name of image i as class/file."""
    name, folder = index.name(i), index.classes[index.labels[i]]
    return name if name.startswith(f"{folder}/") else f"{folder}/{name}"


def sizes_of(index: Split, rows: Indices, read_timeout: float) -> NDArray[np.int64]:
    """Bytes of these images; -1 for a file whose size cannot be read. Raises StorageFailed."""
    if len(index.sizes):
        return index.sizes[rows]

    def size(i: int) -> int:
        path = index.path(i)
        try:
            return retry_transient(lambda: os.stat(path), path, read_timeout / 2).st_size
        except OSError as error:
            if error.errno not in TRANSIENT or not is_out(i, len(index), lambda other: os.stat(index.path(other))):
                return -1
            raise StorageFailed(
                f"{path}: {error.strerror}; check that ls works on the mount (data.root), then run the same command "
                "again"
            ) from error

    with ThreadPoolExecutor(_THREADS) as threads:
        return np.fromiter(threads.map(size, rows.tolist()), np.int64)
