"""A finished pack is checked against its index, sample by sample."""

import os
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.errors import ShardMismatch
from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from imagenet_opt.pack.verify import open_packed, verify
from tests.pack.packs import jpeg, names_of, small_tree, tree


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


def test_each_difference_is_named_by_shard_and_sample(out: Path) -> None:
    index, folder = open_shards(out / "train"), out / "train"
    first = np.searchsorted(index.shard_ids, np.arange(4)).tolist()
    overwrite(folder / index.shards[0], int(index.offsets[1]) + 30, b"\x55\xaa\x55")
    overwrite(folder / index.shards[1], int(index.offsets[first[1]]) - 512, b"x")  # in a member's name
    last = first[3] - 1
    os.truncate(folder / index.shards[2], int(index.offsets[last]) + 7)
    (folder / index.shards[3]).unlink()
    size = (out.parent / "out/train" / index.shards[2]).stat().st_size
    lines = verify(open_packed(folder), 2)
    assert lines[0] == f"{index.path(1)}: the bytes do not match the checksum"
    assert lines[1] == f"{folder}/shard-00001.tar: the images are intact, but a label, a name or padding is damaged"
    assert lines[2] == f"{index.path(last)}: truncated, 7 of {index.sizes[last]} bytes"
    assert lines[3].startswith(f"{folder}/shard-00002.tar: {size} bytes, not ")
    assert lines[4].startswith(f"{folder}/shard-00003.tar: No such file or directory; this shard holds ")
    assert len(lines) == 5


def test_a_name_that_is_no_text_can_be_printed(tmp_path: Path) -> None:
    root = small_tree(tmp_path / "data")
    tree(root, {f"train/a/{os.fsdecode(bytes([255]))}.JPEG": jpeg(seed=99), "train/b/\n\x1b.JPEG": jpeg(seed=98)})
    pack(root, tmp_path / "out", PackOptions())
    index = open_shards(tmp_path / "out/train")
    place = names_of(index).index("a/\udcff.JPEG")
    assert index.path(place).encode() == f"{tmp_path}/out/train/shard-00000.tar: a/\\xff.JPEG".encode()
    assert index.path(names_of(index).index("b/\n\x1b.JPEG")).endswith(r": b/\n\x1b.JPEG")


def test_a_damaged_column_is_named(out: Path) -> None:
    overwrite(out / "val/labels.npy", 128, b"\1")
    with pytest.raises(ShardMismatch, match=r"labels\.npy is damaged"):
        open_packed(out / "val")
