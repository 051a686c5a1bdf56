"""Images to pack: of a folder per class, a tar file per class, or a flat folder with a list of labels."""

import io
import os
import tarfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.folder_index import scan_split
from imagenet_opt.data.index.layout import foreign_tars, is_image, split_url
from imagenet_opt.data.index.object_index import KEY, open_objects
from imagenet_opt.data.index.object_shards import open_object_shards
from imagenet_opt.data.index.shard_index import is_packed
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.storage.read_pool import ReadPool, ReadTask, Sample
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.data.storage.retry import TRANSIENT, is_out, retry_transient
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.errors import (
    ClassMismatch,
    ConfigError,
    DataError,
    DatasetNotFound,
    EmptyClass,
    StorageFailed,
)
from imagenet_opt.object_storage import ObjectStorage
from imagenet_opt.regular_file import MOST_BYTES, open_regular, read_file

READ_TIMEOUT = 120.0
"""Default of data.read_timeout, in seconds. Reads that fail are repeated for half of this time."""
_READS_IN_FLIGHT, _THREADS = 16, 32
_LIST = "LOC_val_solution.csv"
_HEADER_BYTES = 2**16


def open_train(root: Path | str, split: str, cache_dir: Path) -> Split:
    """Open `root`/`split` with a folder or a tar file per class; of a URL, with a folder per class, whose list is kept
    in `cache_dir`. Raises DatasetNotFound, EmptyClass, DataError."""
    if isinstance(root, str):
        url = split_url(root, split)
        with ObjectStorage(url, KEY).explained():
            if open_object_shards(url, cache_dir) is not None:
                raise _packed_already(url)
            return open_objects(url, cache_dir)
    folder = (root.expanduser() / split).resolve()
    if is_packed(folder):
        raise _packed_already(folder)
    if "archive" in (kinds := _kinds(folder)) and "folder" not in kinds:
        return _open_archives(folder)
    return scan_split(root, split)


def open_val(root: Path | str, split: str, classes: tuple[str, ...], labels: Path | None, cache_dir: Path) -> Split:
    """Open val as open_train does, or a flat folder with a list of classes: Kaggle's, or lines of FILE CLASS.

    Raises also ConfigError for a missing or unreadable list, ClassMismatch for classes that are not in `classes`.
    """
    if isinstance(root, Path) and _kinds(folder := (root.expanduser() / split).resolve()) == {"image"}:
        return _open_flat(folder, classes, labels or _find_labels(folder))
    if labels is not None:
        raise ConfigError(
            f"val_labels={labels} is for images directly in a folder, but {root}/{split} is a URL, or has subfolders "
            "or archives: leave val_labels out"
        )
    return open_train(root, split, cache_dir)


def _packed_already(place: Path | str) -> ConfigError:
    return ConfigError(f"{place} is packed already; set data.root to the folder with the original images")


def _kinds(folder: Path) -> set[str]:
    """The kinds of entries in a folder: folder, archive, image."""
    if not folder.is_dir():
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


def _open_flat(folder: Path, classes: tuple[str, ...], list_path: Path) -> Split:
    class_of = _read_labels(list_path)
    numbers = {name: number for number, name in enumerate(classes)}
    if strange := sorted(set(class_of.values()) - set(classes)):
        raise ClassMismatch(
            f"{list_path} (val_labels) names {len(strange)} classes that the training images do not have, such as "
            f"{strange[0]!r}; expected names of training folders, such as {classes[0]}"
        )
    names = sorted(entry.name for entry in os.scandir(folder) if is_image(entry.name))
    class_names = [class_of.get(name) or class_of.get(os.path.splitext(name)[0]) for name in names]
    if unknown := [name for name, class_name in zip(names, class_names, strict=True) if class_name is None]:
        raise ConfigError(
            f"{list_path} (val_labels) has no class for {len(unknown)} of {len(names)} images in {folder}, "
            f"such as {unknown[0]!r}; complete the list or move those files away"
        )
    labels = np.array([numbers[str(class_name)] for class_name in class_names], dtype=np.int32)
    return Split(place=str(folder), classes=classes, labels=labels, **joined(list(map(os.fsencode, names))))


def _find_labels(folder: Path) -> Path:
    for place in (folder, *list(folder.parents)[:4]):
        if (place / _LIST).is_file():
            return place / _LIST
    raise ConfigError(
        f"{folder} has images but no class folders, and no {_LIST} in it or its parents; give a list of the classes "
        "with val_labels=FILE (Kaggle's list, or lines of FILE CLASS)"
    )


def _read_labels(path: Path) -> dict[str, str]:
    """File name, with or without its suffix -> class. Raises ConfigError that names the first malformed line."""
    try:
        lines = read_file(path.expanduser()).decode("utf-8-sig", "surrogateescape").split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path} (val_labels): {error.strerror}") from error
    kaggle = lines[0].startswith("ImageId,")
    class_of: dict[str, str] = {}
    for number, line in enumerate(lines[kaggle:], 1 + kaggle):
        words = _kaggle_words(line) if kaggle else line.strip().rsplit(maxsplit=1)
        if words and len(words) != 2:
            raise ConfigError(f"{path} (val_labels), line {number}: expected FILE CLASS, found {line[:200]!r}")
        if words and class_of.setdefault(os.path.basename(words[0]), words[1]) != words[1]:
            raise ConfigError(f"{path} (val_labels), line {number}: {words[0]!r} has another class in an earlier line")
    return class_of


def _kaggle_words(line: str) -> list[str]:
    """File and class of a line. Kaggle lists a class and a box for each object; the first object counts."""
    file, comma, objects = line.strip().partition(",")
    return [file, *objects.split()[:1]] if comma else line.split()


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
