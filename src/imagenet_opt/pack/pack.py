"""Pack a data set into tar shards with an index, in a folder or in a bucket; see docs/packing.md.

A pack may be stopped at any moment. plan.json is written first and fixes the samples of each shard; a complete shard
gets its name, then its part of the index; index.json comes last. So every existing file is complete, and the next call
writes only the missing files.
"""

import csv
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.index.index_cache import cache_folder
from imagenet_opt.data.index.layout import split_url
from imagenet_opt.data.index.shard_index import COLUMNS, FORMAT, INDEX, About, load_index, read_about, shard_name
from imagenet_opt.data.index.split import joined, with_classes_of
from imagenet_opt.data.randomness import key_of
from imagenet_opt.errors import ConfigError, DataError, ShardMismatch, printable
from imagenet_opt.object_storage import is_web
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.plan import PackSplit, plan
from imagenet_opt.pack.shard_writer import ShardPart, make_shards
from imagenet_opt.pack.source import READ_TIMEOUT, in_blocks, open_train, open_val
from imagenet_opt.pack.target import BucketTarget, FolderTarget, pack_lock, part_name

REJECTED = "rejected.csv"


@dataclass(frozen=True)
class Packed:
    """Content of a pack, in images and bytes. images_seen: files that this call processed."""

    images: int
    rejected: int
    bytes_in: int
    bytes_out: int
    images_seen: int


def pack(
    root: Path | str,
    out: Path | str,
    options: PackOptions,
    *,
    cache_dir: str | None = None,
    train_folder: str = "train",
    val_folder: str = "val",
    val_labels: Path | None = None,
    workers: int = 0,
    read_timeout: float = READ_TIMEOUT,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Packed:
    """Pack `root`/`train_folder` and `root`/`val_folder` into `out`/train and `out`/val, or resume an earlier pack.

    root, out: folders, or URLs of objects. cache_dir: data.cache_dir, for the list of the images of a URL, and for
    files on their way to a bucket: one shard of each process. workers: processes; 0 packs in this process.
    read_timeout: seconds for an answer of the storage; reads that fail are repeated for half of them. on_progress:
    called after each shard with (files processed by this call, all files).

    Raises ConfigError for an `out` with other content; DataError if no image can be packed; PackStopped for a failure
    after which the pack can resume; StorageFailed, ReadTimeout for a storage that fails.
    """
    _check_places(root, out, train_folder, val_folder)
    cache = cache_folder(cache_dir)
    train = open_train(root, train_folder, cache)
    val = with_classes_of(train, open_val(root, val_folder, val_labels, cache))
    draw = np.random.Generator(np.random.Philox(key_of(options.seed)))
    shuffled = in_blocks(train, draw) if train.codec else draw.permutation(len(train))
    targets = _targets(out, cache)
    with pack_lock(targets):
        splits = plan(
            PackSplit(targets[0], train, shuffled, options, read_timeout, is_shuffled=bool(train.codec)),
            PackSplit(targets[1], val, np.arange(len(val)), options, read_timeout),
        )
        missing = [_missing(split) for split in splits]
        tasks = [split.task(i) for split, shards in zip(splits, missing, strict=True) for i in shards]
        make_shards(tasks, workers, on_progress)
        abouts = [_finish(split, shards) for split, shards in zip(splits, missing, strict=True)]
    return Packed(
        images=sum(about.samples for about in abouts),
        rejected=sum(about.rejected for about in abouts),
        bytes_in=sum(about.bytes_in for about in abouts),
        bytes_out=sum(shard.bytes for about in abouts for shard in about.shards),
        images_seen=sum(len(task.index) for task in tasks),
    )


def _targets(out: Path | str, cache: Path) -> list[FolderTarget]:
    """Those of train and val."""
    if isinstance(out, Path):
        return [FolderTarget(out / split) for split in ("train", "val")]
    folder = cache / "pack" / hashlib.sha256(out.encode()).hexdigest()[:24]
    return [BucketTarget(folder / split, f"{out}/{split}") for split in ("train", "val")]


def _check_places(root: Path | str, out: Path | str, train_folder: str, val_folder: str) -> None:
    if isinstance(out, str) and is_web(out):
        raise ConfigError(f"out={out} is no bucket; expected a folder, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER")
    target = _place(out, ".")
    for images in (_place(root, folder) for folder in (".", train_folder, val_folder)):
        if target.is_relative_to(images) or images.is_relative_to(target):
            raise ConfigError(f"out={out} and the images in {root} (data.root) overlap; choose a folder beside them")


def _place(root: Path | str, folder: str) -> PurePath:
    """Full path or URL, without . and .. and links."""
    return PurePath(split_url(root, folder)) if isinstance(root, str) else (root.expanduser() / folder).resolve()


def _missing(split: PackSplit) -> list[int]:
    """Shards that are missing or incomplete."""
    if (about := _finished(split)) is not None:
        return sorted(split.target.wrong_shards({i: shard.bytes for i, shard in enumerate(about.shards)}))
    parts = {}
    for i in range(split.num_shards):
        with suppress(FileNotFoundError, ValueError, TypeError):  # missing or damaged
            parts[i] = _read_part(split, i)
    wrong = split.target.wrong_shards({i: part.num_bytes for i, part in parts.items()})
    return [i for i in range(split.num_shards) if i not in parts or i in wrong]


def _finished(split: PackSplit) -> About | None:
    """index.json; None if it is missing or does not match its columns and the plan."""
    try:
        load_index(split.target.folder)
        about = read_about(split.target.folder)
    except ShardMismatch:
        return None
    return about if len(about.shards) == split.num_shards else None


def _read_part(split: PackSplit, shard: int) -> ShardPart:
    return ShardPart(**json.loads((split.target.folder / part_name(shard)).read_bytes()))


def _finish(split: PackSplit, made: list[int]) -> About:
    """Write the index of a split whose shards are complete. made: shards of this call. Returns index.json."""
    about = _finished(split) or _write_index(split)
    for i in made:
        if _read_part(split, i).checksum != about.shards[i].crc32:
            split.target.remove(shard_name(i))
            raise ShardMismatch(
                f"{split.target.place}/{shard_name(i)} cannot be restored with the same content: the images in "
                f"{split.index.place} (data.root) or Pillow's version changed; "
                f"remove {split.target.place.rpartition('/')[0]} (out) and pack again"
            )
    split.target.finish()
    return about


def _write_index(split: PackSplit) -> About:
    target, parts = split.target, [_read_part(split, i) for i in range(split.num_shards)]
    rejected = [row for part in parts for row in part.rejected]
    with target.file(REJECTED) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        csv.writer(text).writerows([("file", "reason"), *(map(printable, row) for row in rejected)])
        text.detach()
    if not any(part.samples for part in parts):
        raise DataError(
            f"no image in {split.index.place} (data.root) can be packed; {target.place}/{REJECTED} says why"
        )
    columns = _columns(parts)
    shards = [{"name": shard_name(i), "bytes": part.num_bytes, "crc32": part.checksum} for i, part in enumerate(parts)]
    about = {
        "format": FORMAT,
        "classes": [os.fsencode(name).decode("utf-8", "backslashreplace") for name in split.index.classes],
        "samples": len(columns["labels"]),
        "rejected": len(rejected),
        "bytes_in": sum(part.bytes_in for part in parts),
        "columns": {name: _write_column(target, f"{name}.npy", column) for name, column in columns.items()},
        "shards": shards,
    }
    target.write_json(INDEX, about)
    return read_about(target.folder)


def _columns(parts: list[ShardPart]) -> dict[str, NDArray[Any]]:
    samples = (sample for part in parts for sample in part.samples)
    names, labels, offsets, sizes, checksums = zip(*samples, strict=True)
    shard_ids = np.repeat(np.arange(len(parts)), [len(part.samples) for part in parts])
    columns = {"labels": labels, "shard_ids": shard_ids, "offsets": offsets, "sizes": sizes, "checksums": checksums}
    columns |= joined(list(map(os.fsencode, names)))
    return {name: np.array(columns[name], dtype) for name, dtype in COLUMNS.items()}


def _write_column(target: FolderTarget, name: str, column: NDArray[Any]) -> int:
    """Write a column as .npy; returns zlib.crc32 of the file."""
    content = io.BytesIO()
    np.save(content, column)
    with target.file(name) as file:
        file.write(content.getbuffer())
    return zlib.crc32(content.getbuffer())
