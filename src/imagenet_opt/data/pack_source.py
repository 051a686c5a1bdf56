"""What can be packed: a folder a class, a tar file a class, or a flat folder with a list of labels."""

import csv
import os
import tarfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index import IMAGE_SUFFIXES, FileIndex, open_split
from imagenet_opt.data.shards import is_packed
from imagenet_opt.errors import ClassMismatch, ConfigError, DataError, EmptyClass

_THREADS = 32
_LIST = "LOC_val_solution.csv"


@dataclass(frozen=True)
class Source:
    """Files of one split. With starts and sizes, int64 (n,), file i is that part of <class>.tar; else it is a file.

    nested: the files' names begin with their class.
    """

    files: FileIndex
    nested: bool
    starts: NDArray[np.int64] | None = None
    sizes: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.files)

    def name(self, i: int) -> str:
        """class/file"""
        name = os.fsdecode(self._file(i))
        return name if self.nested else f"{self.files.classes[self.files.labels[i]]}/{name}"

    def place(self, i: int) -> str:
        """Where it is, for messages."""
        if self.starts is None:
            return self.files.path(i)
        return f"{self._archive(i)}: {os.fsdecode(self._file(i))}"

    def read(self, i: int) -> bytes:
        if self.starts is None or self.sizes is None:
            with open(self.files.path(i), "rb", buffering=0) as file:
                return file.readall()
        with open(self._archive(i), "rb", buffering=0) as file:
            return os.pread(file.fileno(), int(self.sizes[i]), int(self.starts[i]))

    def num_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sizes of some files; -1 for one that cannot be asked."""
        if self.sizes is not None:
            return self.sizes[indices]
        with ThreadPoolExecutor(_THREADS) as threads:
            return np.fromiter(threads.map(_size, map(self.files.path, indices.tolist())), np.int64)

    def take(self, indices: NDArray[np.int64]) -> "Source":
        """These alone, to hand to another process."""
        names = [self._file(i) for i in indices.tolist()]
        files = _file_index(self.files.folder, self.files.classes, self.files.labels[indices], names)
        columns = [None if column is None else column[indices] for column in (self.starts, self.sizes)]
        return Source(files, self.nested, *columns)

    def _file(self, i: int) -> bytes:
        return self.files.names[self.files.offsets[i] : self.files.offsets[i + 1]].tobytes()

    def _archive(self, i: int) -> str:
        return os.path.join(self.files.folder, f"{self.files.classes[self.files.labels[i]]}.tar")


def open_train(root: Path, split: str) -> Source:
    """`root`/`split` with a folder or a tar file a class. Raises DatasetNotFound, EmptyClass, DataError."""
    folder = (root.expanduser() / split).resolve()
    if is_packed(folder):
        raise ConfigError(f"{folder} is packed already; data.root must hold the images that it was made from")
    if "archive" in (kinds := _kinds(folder)) and "folder" not in kinds:
        return _open_archives(folder)
    with TemporaryDirectory() as no_cache:
        return Source(open_split(root, split, Path(no_cache)), nested=True)


def open_val(root: Path, split: str, classes: tuple[str, ...], labels: Path | None) -> Source:
    """As open_train, or a flat folder whose files `labels` gives classes to: Kaggle's list, or lines of FILE CLASS.

    Raises also ConfigError without a list that can be read, ClassMismatch for classes that are not in `classes`.
    """
    folder = (root.expanduser() / split).resolve()
    if _kinds(folder) == {"image"}:
        return _open_flat(folder, classes, labels or _find_list(folder))
    if labels is not None:
        raise ConfigError(
            f"val_labels={labels} is for images right below {folder}, which has folders or archives: leave it out"
        )
    return open_train(root, split)


def _kinds(folder: Path) -> set[str]:
    """Which of folder, archive and image there are in it."""
    if not folder.is_dir():
        return set()
    suffixes = {".tar": "archive"} | dict.fromkeys(IMAGE_SUFFIXES, "image")
    entries = (
        "folder" if e.is_dir() else suffixes.get(os.path.splitext(e.name)[1].lower()) for e in os.scandir(folder)
    )
    return {kind for kind in entries if kind}


def _file_index(folder: Path, classes: tuple[str, ...], labels: NDArray[np.int32], names: Iterable[bytes]) -> FileIndex:
    names = list(names)
    flat = np.frombuffer(b"".join(names), dtype=np.uint8)
    return FileIndex(folder, classes, labels, flat, np.cumsum([0, *map(len, names)], dtype=np.int64))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _open_archives(folder: Path) -> Source:
    paths = sorted(path for path in folder.iterdir() if path.suffix == ".tar")
    with ThreadPoolExecutor(_THREADS) as threads:
        found = list(threads.map(_members, paths))
    members = [member for archive in found for member in archive]
    labels = np.repeat(np.arange(len(paths), dtype=np.int32), [len(archive) for archive in found])
    files = _file_index(folder, tuple(path.stem for path in paths), labels, (name for name, _, _ in members))
    starts, sizes = (np.array([member[i] for member in members], dtype=np.int64) for i in (1, 2))
    return Source(files, False, starts, sizes)


def _members(path: Path) -> list[tuple[bytes, int, int]]:
    """Name, offset and size of each image in a tar file. Raises EmptyClass; DataError for one that is damaged."""
    try:
        with tarfile.open(path, "r:") as archive:
            files = [member for member in archive if member.isfile()]
            with open(path, "rb") as file:
                file.seek(archive.offset)
                if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                    raise tarfile.ReadError("no end mark")
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{path} is cut short or no tar file ({error}); fetch it again (data.root)") from error
    images = [file for file in files if file.name.lower().endswith(IMAGE_SUFFIXES)]
    if not images:
        raise EmptyClass(f"no images in {path}; remove it or fetch it again (data.root)")
    return [(os.fsencode(os.path.normpath(image.name)), image.offset_data, image.size) for image in images]


def _find_list(folder: Path) -> Path:
    for place in (folder, *list(folder.parents)[:4]):
        if (place / _LIST).is_file():
            return place / _LIST
    raise ConfigError(
        f"{folder} has images but no class folders, and no {_LIST} lies there or above; "
        "say which class each is of with val_labels=FILE (that list of Kaggle's, or lines of FILE CLASS)"
    )


def _open_flat(folder: Path, classes: tuple[str, ...], list_path: Path) -> Source:
    class_of = _read_list(list_path)
    numbers = {name: number for number, name in enumerate(classes)}
    if strange := sorted(set(class_of.values()) - set(classes)):
        raise ClassMismatch(
            f"{list_path} (val_labels) names {len(strange)} classes that the training images do not have, such as "
            f"{strange[0]}; expected their folders' names, such as {classes[0]}"
        )
    names = sorted(entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(IMAGE_SUFFIXES))
    found = [class_of.get(name) or class_of.get(os.path.splitext(name)[0]) for name in names]
    if unknown := [name for name, class_name in zip(names, found, strict=True) if class_name is None]:
        raise ConfigError(
            f"{list_path} (val_labels) has no class for {len(unknown)} of {len(names)} images in {folder}, "
            f"such as {unknown[0]}; complete the list or move those files away"
        )
    labels = np.array([numbers[str(class_name)] for class_name in found], dtype=np.int32)
    return Source(_file_index(folder, classes, labels, map(os.fsencode, names)), nested=False)


def _read_list(path: Path) -> dict[str, str]:
    """File name, with or without its suffix -> class."""
    try:
        lines = path.expanduser().read_text("utf-8-sig", errors="surrogateescape").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read {path} (val_labels): {error.strerror}") from error
    class_of = {}
    kaggle = bool(lines) and lines[0].startswith("ImageId,")
    for number, line in enumerate(lines[kaggle:], 1 + kaggle):
        words = [*next(csv.reader([line]), [])] if kaggle else line.rsplit(maxsplit=1)
        if kaggle and len(words) > 1:
            words[1:] = words[1].split()[:1]
        if words and len(words) != 2:
            raise ConfigError(f"{path} (val_labels), line {number}: expected FILE CLASS, found {line!r}")
        if words:
            class_of[os.path.basename(words[0])] = words[1]
    return class_of
