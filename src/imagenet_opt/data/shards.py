"""Packed splits: tar shards with an index beside them, which gives any sample by its place in the file.

A split is a folder of shard-00000.tar, shard-00001.tar, ..., index.json and one .npy file a column of ShardIndex.
imagenet-opt pack makes it; any tar or WebDataset reader opens the shards without the index.
"""

import json
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.errors import BadSample, ShardMismatch, printable

FORMAT = 1
INDEX, PLAN = "index.json", "plan.json"
COLUMNS = {
    "labels": np.int32,
    "shard_ids": np.int32,
    "offsets": np.int64,
    "sizes": np.int64,
    "checksums": np.uint32,
    "names": np.uint8,
    "name_offsets": np.int64,
}
_STAT_THREADS = 32
_GAP = 2**16
"""Bytes between two samples that are rather read along than skipped with another request."""
_REQUEST = 2**22
_OTHER_FILES = 512
"""Files that the rest of a process may have open."""


@dataclass(frozen=True)
class ShardIndex:
    """Samples of one packed split, in the order of the shards; memory-mapped.

    labels: int32 (n,); shard_ids: int32 (n,), into shards; offsets: int64 (n,), of the image's bytes in its shard;
    sizes: int64 (n,), bytes; checksums: uint32 (n,), zlib.crc32 of them.
    Sample i was class/file names[name_offsets[i]:name_offsets[i + 1]]: uint8, all end to end, and int64 (n + 1,).
    """

    folder: Path
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    shards: tuple[str, ...]
    shard_ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    names: NDArray[np.uint8]
    name_offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, i: int) -> str:
        """FOLDER/shard-00003.tar: class/name.JPEG, for messages: bytes that are no text are written as \\xff."""
        name = self.names[self.name_offsets[i] : self.name_offsets[i + 1]].tobytes()
        shard = os.fsencode(self.folder / self.shards[self.shard_ids[i]])
        return (shard + b": " + name).decode("utf-8", "backslashreplace")

    def __reduce__(self) -> tuple[Callable[[Path], "ShardIndex"], tuple[Path]]:
        """Another process maps the files anew; the arrays would be copied into it."""
        return open_shards, (self.folder,)


def shard_name(i: int) -> str:
    return f"shard-{i:05d}.tar"


def is_packed(folder: Path) -> bool:
    """Whether a split was packed into `folder`, completely or not."""
    return any((folder / name).is_file() for name in (INDEX, PLAN, shard_name(0)))


def open_shards(folder: Path) -> ShardIndex:
    """The index of a packed split. Reads no image.

    Raises ShardMismatch for an unfinished pack, a damaged column, a shard that is absent or of another size.
    """
    index = load_index(folder)
    if wrong := wrong_shards(folder, read_about(folder)["shards"]):
        more = f" and {len(wrong) - 1} more shards" if len(wrong) > 1 else ""
        raise mismatch(folder, f"{next(iter(wrong.values()))}{more}")
    return index


def load_index(folder: Path) -> ShardIndex:
    """The index without a look at the shards. Raises ShardMismatch."""
    about = read_about(folder)
    num_bytes = np.array([shard["bytes"] for shard in about["shards"]], dtype=np.int64)
    columns = {name: _column(folder, name) for name in COLUMNS}
    num_samples, names_bytes = about["samples"], len(columns["names"])
    for name, dtype in COLUMNS.items():
        column, length = columns[name], {"names": names_bytes, "name_offsets": num_samples + 1}.get(name, num_samples)
        if column.dtype != dtype or column.shape != (length,):
            found = f"{column.dtype} {column.shape}, not {length} numbers of {dtype.__name__}"
            raise mismatch(folder, f"{folder / name}.npy is {found}")
    limits = {"labels": len(about["classes"]) - 1, "shard_ids": len(num_bytes) - 1, "name_offsets": names_bytes}
    for name, most in limits.items():
        if columns[name].min() < 0 or columns[name].max() > most:
            raise mismatch(folder, f"{folder / name}.npy is damaged: it has numbers outside of 0 to {most}")
    ends = columns["offsets"] + columns["sizes"]
    if min(columns["offsets"].min(), columns["sizes"].min()) < 0 or (ends > num_bytes[columns["shard_ids"]]).any():
        raise mismatch(folder, f"{folder}/offsets.npy or sizes.npy is damaged: it points outside of its shard")
    shards = tuple(shard["name"] for shard in about["shards"])
    return ShardIndex(folder, tuple(about["classes"]), shards=shards, **columns)


def read_about(folder: Path) -> Any:
    """index.json as it is. Raises ShardMismatch."""
    try:
        about = json.loads((folder / INDEX).read_bytes())
        if about["format"] != FORMAT:
            raise mismatch(folder, f"{folder / INDEX} is of format {about['format']}, not {FORMAT}")
        return about
    except FileNotFoundError as error:
        raise mismatch(folder, f"{folder} is no finished pack: it has no {INDEX}") from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise mismatch(folder, f"{folder / INDEX} is damaged: {error}") from error


def wrong_shards(folder: Path, shards: list[dict[str, Any]]) -> dict[int, str]:
    """What is wrong with the size of which shard. shards: name and bytes of each."""

    def wrong(shard: dict[str, Any]) -> str:
        path = folder / shard["name"]
        try:
            found = os.stat(path).st_size
        except OSError as error:
            return f"{path}: {error.strerror}"
        return "" if found == shard["bytes"] else f"{path} has {found} bytes, not the {shard['bytes']} of its index"

    with ThreadPoolExecutor(_STAT_THREADS) as threads:
        return {i: what for i, what in enumerate(threads.map(wrong, shards)) if what}


def mismatch(folder: Path, what: str) -> ShardMismatch:
    return ShardMismatch(
        f"{what} (data.root). To mend it, pack again with the same words: what is whole is kept; "
        f"imagenet-opt pack out={folder.parent} --verify lists all damage"
    )


def _column(folder: Path, name: str) -> NDArray[Any]:
    try:
        column: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r")
        return column
    except (OSError, EOFError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise mismatch(folder, f"{folder / name}.npy cannot be opened: {reason}") from error


class ShardStore:
    """Bytes of packed samples; neighbours come with one request. Threads and forks may share it."""

    def __init__(self, index: ShardIndex) -> None:
        self.index = index
        self._files: dict[int, _OpenFile] = {}
        _allow_open_files(len(index.shards) + _OTHER_FILES)

    def __reduce__(self) -> tuple[type["ShardStore"], tuple[ShardIndex]]:
        return ShardStore, (self.index,)

    def __len__(self) -> int:
        return len(self.index)

    def groups(self, indices: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Which samples one request reads: places in `indices`, by their place in the shard.

        Those of one shard with less than 64 KiB between them, up to 4 MiB.
        """
        shards, starts = self.index.shard_ids[indices], self.index.offsets[indices]
        order = np.lexsort((starts, shards))
        spans = np.stack([shards, starts, starts + self.index.sizes[indices]], axis=1)[order].tolist()
        cuts, first = [0], 0
        for i, ((shard, _, end), (next_shard, next_start, next_end)) in enumerate(pairwise(spans), 1):
            if next_shard != shard or next_start - end >= _GAP or next_end - spans[first][1] > _REQUEST:
                cuts.append(i)
                first = i
        return np.split(order, cuts[1:]) if len(order) else []

    def read_many(self, indices: NDArray[np.int64]) -> list[bytes]:
        """Bytes of each sample, in the order of `indices`.

        Raises OSError; BadSample for a shard that ends too soon.
        """
        found = [b""] * len(indices)
        for group in self.groups(indices):
            members = indices[group]
            starts = self.index.offsets[members]
            ends = starts + self.index.sizes[members]
            shard, first = int(self.index.shard_ids[members[0]]), int(starts[0])
            encoded = self._read(shard, first, int(ends.max()) - first)
            for place, start, end in zip(group.tolist(), starts - first, ends - first, strict=True):
                found[place] = encoded[start:end]
        return found

    def name(self, index: int) -> str:
        return printable(self.index.path(index))

    def _read(self, shard: int, offset: int, size: int) -> bytes:
        path = self.index.folder / self.index.shards[shard]
        try:
            file = self._files.get(shard) or self._files.setdefault(shard, _OpenFile(os.open(path, os.O_RDONLY)))
            encoded = os.pread(file.descriptor, size, offset)
            while 0 < len(encoded) < size and (
                more := os.pread(file.descriptor, size - len(encoded), offset + len(encoded))
            ):
                encoded += more  # some network file systems answer in pieces
        except OSError:
            self._files.pop(shard, None)  # a stale handle stays stale
            raise
        if len(encoded) < size:
            raise BadSample(
                f"{path} ends at byte {offset + len(encoded)}, in the middle of {size} bytes at {offset} (data.root); "
                f"imagenet-opt pack out={self.index.folder.parent} --verify lists all damage, packing again mends it"
            )
        return encoded


@dataclass(frozen=True)
class _OpenFile:
    """Closed once no thread reads from it any more."""

    descriptor: int

    def __del__(self) -> None:
        os.close(self.descriptor)


def _allow_open_files(num_files: int) -> None:
    """Raise the soft limit to the hard one where `num_files` would not fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < num_files and soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
