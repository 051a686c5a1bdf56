"""A finished pack is compared with the checksums of its index."""

import os
from pathlib import Path

from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.pack.verify import open_packed, verify


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


def test_each_damaged_shard_is_named(out: Path) -> None:
    index, folder = open_shards(out / "train"), out / "train"
    overwrite(folder / index.containers[0], int(index.offsets[1]) + 30, b"\x55\xaa\x55")
    os.truncate(folder / index.containers[2], 700)
    (folder / index.containers[3]).unlink()
    changed, cut, lost = verify(open_packed(folder), 2)
    assert changed == f"{folder}/shard-00000.tar: the bytes do not match the checksum"
    assert cut.startswith(f"{folder}/shard-00002.tar: 700 bytes, not ")
    assert lost == f"{folder}/shard-00003.tar: No such file or directory"
