"""Packed splits: tar shards with an index of the places of all samples.

A split is a folder of shard-00000.tar, shard-00001.tar, ..., index.json and one .npy file for each column of a Split,
whose container_ids are called shard_ids. `imagenet-opt pack` makes the folder; any tar or WebDataset reader opens the
shards without the index.
"""

import os
import shlex
import zlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from imagenet_opt.data.index.index_cache import check_ends, check_range, crc32_of, open_column
from imagenet_opt.data.index.split import Origin, Split
from imagenet_opt.errors import ShardMismatch
from imagenet_opt.regular_file import MOST_BYTES, read_file

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


class AboutShard(BaseModel):
    """crc32: zlib.crc32 of the whole file."""

    bytes: int = Field(ge=0, lt=2**63)
    crc32: int


class About(BaseModel):
    """Content of index.json. columns: zlib.crc32 of the file of each column. bytes_in: bytes of the original images."""

    format: Literal[1]
    classes: tuple[str, ...]
    samples: int = Field(ge=1, lt=2**48)
    rejected: int
    bytes_in: int
    columns: dict[str, int]
    shards: list[AboutShard] = Field(min_length=1)


def shard_name(i: int) -> str:
    return f"shard-{i:05d}.tar"


def is_packed(folder: Path) -> bool:
    """Whether `folder` contains a packed split, complete or not."""
    files = [name for name in (PLAN, INDEX) if (folder / name).is_file()]
    return is_pack(files, lambda name: read_file(folder / name))


def is_pack(files: Collection[str], read: Callable[[str], bytes]) -> bool:
    """Whether a folder with these files contains a packed split, complete or not."""
    return PLAN in files or (INDEX in files and not is_of_wids(read(INDEX)))


def is_of_wids(content: bytes) -> bool:
    """Whether an index.json is that of wids, which lists the tars of WebDataset."""
    return b'"__kind__"' in content[:4096]


def open_shards(folder: Path) -> Split:
    """Open a packed split without reading images. Raises ShardMismatch for an unfinished pack, a damaged column, or
    a missing or resized shard. The columns of ImageNet, about 80 MB, are compared with their checksums."""
    index, about = open_whole(folder)
    if wrong := wrong_shards(folder, {i: shard.bytes for i, shard in enumerate(about.shards)}):
        more = f"; {verify_command(folder)} lists all damage"
        raise mismatch(folder, next(iter(wrong.values())), more)
    return index


def open_whole(folder: Path) -> tuple[Split, About]:
    """The index, whose columns are compared with their checksums, and index.json. Raises ShardMismatch."""
    index, about = load_index(folder), read_about(folder)
    if damaged := damaged_columns(folder, about):
        raise mismatch(folder, f"{damaged[0]} is damaged: it does not match its checksum")
    return index, about


def load_index(folder: Path) -> Split:
    """Load the index without checking the shards. Raises ShardMismatch."""
    about = read_about(folder)
    try:
        columns = open_columns(folder, about)
    except ValueError as error:
        raise mismatch(folder, str(error)) from error
    origin = Origin(folder / INDEX, zlib.crc32(read_file(folder / INDEX)), partial(load_index, folder))
    return split_of(str(folder), about, columns, origin=origin)


def split_of(place: str, about: About, columns: Mapping[str, Any], **more: Any) -> Split:
    """The split of a pack. more: further fields."""
    return Split(
        place=place,
        classes=about.classes,
        containers=tuple(map(shard_name, range(len(about.shards)))),
        container_ids=columns["shard_ids"],
        **{name: column for name, column in columns.items() if name != "shard_ids"},
        **more,
    )


def open_columns(folder: Path, about: About) -> dict[str, NDArray[Any]]:
    """Open and check the columns. Raises ValueError for places outside of a shard, and for samples that overlap."""
    files = {name: folder / f"{name}.npy" for name in COLUMNS}
    lengths = dict.fromkeys(COLUMNS, about.samples) | {"names": None, "name_offsets": about.samples + 1}
    columns = {name: open_column(files[name], dtype, lengths[name]) for name, dtype in COLUMNS.items()}
    check_range(files["labels"], columns["labels"], len(about.classes) - 1)
    check_range(files["shard_ids"], columns["shard_ids"], len(about.shards) - 1)
    check_ends(files["name_offsets"], columns["name_offsets"], len(columns["names"]))
    shards, starts, sizes = columns["shard_ids"], columns["offsets"], columns["sizes"]
    room = np.array([shard.bytes for shard in about.shards])[shards]
    if (starts < 0).any() or (sizes < 0).any() or (starts > room).any() or (sizes > room - starts).any():
        raise ValueError(f"{folder}/offsets.npy or sizes.npy is damaged: it points outside of its shard")
    check_range(files["sizes"], sizes, MOST_BYTES)
    next_start = np.where(shards[1:] == shards[:-1], starts[1:], room[:-1])
    if (shards[1:] < shards[:-1]).any() or ((starts + sizes)[:-1] > next_start).any():
        raise ValueError(f"{folder}/shard_ids.npy, offsets.npy or sizes.npy is damaged: samples overlap")
    return columns


def damaged_columns(folder: Path, about: About) -> list[Path]:
    """Files of columns that do not match their checksums. Raises OSError."""
    files = {name: folder / f"{name}.npy" for name in COLUMNS}
    return [file for name, file in files.items() if crc32_of(file) != about.columns.get(name)]


def read_about(folder: Path) -> About:
    """Read and check index.json. Raises ShardMismatch."""
    try:
        return parse_about(read_file(folder / INDEX), str(folder / INDEX))
    except FileNotFoundError as error:
        raise mismatch(folder, f"{folder} is no finished pack: it has no {INDEX}") from error
    except OSError as error:
        raise mismatch(folder, f"{folder / INDEX} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise mismatch(folder, str(error)) from error


def parse_about(content: bytes, name: str) -> About:
    """Check the content of index.json. name: of the file, for messages. Raises ValueError; ShardMismatch for a format
    of a later version."""
    try:
        return About.model_validate_json(content)
    except ValidationError as error:
        later = next((each["input"] for each in error.errors() if each["loc"] == ("format",)), FORMAT)
        if isinstance(later, int) and later > FORMAT:
            raise ShardMismatch(
                f"{name} has format {later}, of a newer version of imagenet-opt; this version reads format {FORMAT}: "
                "install the version that packed the data (data.root)"
            ) from error
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{name} is damaged: {place + ': ' if place else ''}{first['msg']}") from error


def wrong_shards(folder: Path, num_bytes: Mapping[int, int]) -> dict[int, str]:
    """Messages about shards whose size is wrong."""

    def wrong(shard: int) -> str:
        path = folder / shard_name(shard)
        try:
            size = os.stat(path).st_size
        except OSError as error:
            return f"{path}: {error.strerror}"
        return "" if size == num_bytes[shard] else f"{path} has {size} bytes, not the {num_bytes[shard]} of its index"

    with ThreadPoolExecutor(_STAT_THREADS) as threads:
        messages = zip(num_bytes, threads.map(wrong, num_bytes), strict=True)
        return {shard: message for shard, message in messages if message}


def verify_command(split: Path | str) -> str:
    """The command that compares a pack with its checksums. split: folder or URL of one of its splits."""
    return shlex.join(["imagenet-opt", "pack", f"out={str(split).rpartition('/')[0]}", "--verify"])


def mismatch(folder: Path, what: str, more: str = "") -> ShardMismatch:
    return ShardMismatch(
        f"{what} (data.root, which is the out={folder.parent} of imagenet-opt pack). "
        f"Run the same pack command again to repair it: intact shards are kept{more}"
    )
