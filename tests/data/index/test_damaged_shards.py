"""A damaged pack is refused in one line with the file and the remedy."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.shard_index import is_packed, open_shards
from imagenet_opt.errors import ShardMismatch


class Evil:
    def __reduce__(self) -> tuple:
        return os._exit, (66,)


def npy_header(text: str) -> bytes:
    padded = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


def change(folder: Path, **about: object) -> None:
    content = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(content | about))


def damage(folder: Path, what: str) -> None:
    """One of the ways in which a pack goes bad."""
    match what:
        case "no shard":
            (folder / "shard-00001.tar").unlink()
        case "cut shard":
            os.truncate(folder / "shard-00001.tar", 1024)
        case "no column":
            (folder / "sizes.npy").unlink()
        case "cut column":
            os.truncate(folder / "offsets.npy", 200)
        case "short column":
            np.save(folder / "labels.npy", np.zeros(5, np.int32))
        case "other type":
            np.save(folder / "labels.npy", np.zeros(39, np.int64))
        case "wild label":
            np.save(folder / "labels.npy", np.full(39, 3, np.int32))
        case "wild offset":
            np.save(folder / "offsets.npy", np.full(39, 10**9))
        case "label below zero":
            np.save(folder / "labels.npy", np.full(39, -1, np.int32))
        case "shard below zero":
            np.save(folder / "shard_ids.npy", np.full(39, -1, np.int32))
        case "size below zero":
            np.save(folder / "sizes.npy", np.full(39, -1))
        case "offset and size overflow":
            np.save(folder / "offsets.npy", np.full(39, 2**63 - 1))
            np.save(folder / "sizes.npy", np.full(39, 2**63 - 1))
        case "samples overlap":
            np.save(folder / "offsets.npy", np.full(39, 512))
        case "shards out of order":
            np.save(folder / "shard_ids.npy", np.load(folder / "shard_ids.npy")[::-1])
        case "names overlap":
            np.save(folder / "name_offsets.npy", np.load(folder / "name_offsets.npy")[::-1])
        case "pickled":
            np.save(folder / "labels.npy", np.array([Evil()] * 39, dtype=object), allow_pickle=True)
        case "archive":
            with open(folder / "labels.npy", "wb") as file:
                np.savez(file, labels=np.zeros(39, np.int32))
        case "more than there is":
            header = "{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904,)}"
            (folder / "labels.npy").write_bytes(npy_header(header) + bytes(39 * 4))
        case "shape below zero":
            header = "{'descr': '<i4', 'fortran_order': False, 'shape': (-39,)}"
            (folder / "labels.npy").write_bytes(npy_header(header) + bytes(39 * 4))
        case "other shards":
            change(folder, shards=[{"bytes": 2**70, "crc32": 0}])
        case "classes are no names":
            change(folder, classes=[[1], 2])
        case "no samples":
            change(folder, samples=0)
        case "deep":
            (folder / "index.json").write_text("[" * 100_000)
        case "no header":
            (folder / "names.npy").write_bytes(b"\0" * 300)
        case "unfinished":
            (folder / "index.json").unlink()
        case "damaged index":
            (folder / "index.json").write_text("{")
        case "other format":
            (folder / "index.json").write_text('{"format": 99}')


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no shard", "shard-00001.tar: No such file or directory"),
        ("cut shard", "shard-00001.tar has 1024 bytes, not the "),
        ("no column", "sizes.npy cannot be opened: No such file"),
        ("cut column", "offsets.npy has 200 bytes, not those of 39 numbers"),
        ("short column", "labels.npy is int32 (5,), not 39 numbers of int32"),
        ("other type", "labels.npy is int64 (39,), not 39 numbers of int32"),
        ("wild label", "labels.npy is damaged: it has numbers outside of 0 to 2"),
        ("wild offset", "points outside of its shard"),
        ("label below zero", "labels.npy is damaged: it has numbers outside of 0 to 2"),
        ("shard below zero", "shard_ids.npy is damaged: it has numbers outside of 0 to "),
        ("size below zero", "points outside of its shard"),
        ("offset and size overflow", "points outside of its shard"),
        ("samples overlap", "is damaged: samples overlap"),
        ("shards out of order", "is damaged"),
        ("names overlap", "name_offsets.npy is damaged"),
        ("pickled", "labels.npy is object (39,), not 39 numbers of int32"),
        ("archive", "labels.npy cannot be opened"),
        ("more than there is", "labels.npy is int32 (4611686018427387904,), not 39 numbers of int32"),
        ("shape below zero", "labels.npy is int32 (-39,), not 39 numbers of int32"),
        ("other shards", "index.json is damaged: shards.0.bytes: "),
        ("classes are no names", "index.json is damaged: classes.0: "),
        ("no samples", "index.json is damaged: samples: "),
        ("deep", "index.json is damaged: Invalid JSON: recursion limit exceeded"),
        ("no header", "names.npy cannot be opened"),
        ("unfinished", "is no finished pack: it has no index.json"),
        ("damaged index", "index.json is damaged"),
        ("other format", "index.json is of format 99, not 1"),
    ],
)
def test_damage_is_told_with_the_file_and_the_remedy(what: str, words: str, copy: Path) -> None:
    damage(copy, what)
    assert is_packed(copy)
    with pytest.raises(ShardMismatch) as caught:
        open_shards(copy)
    for word in (words, str(copy), "data.root", "pack command again", f"out={copy.parent}", "imagenet-opt pack"):
        assert word in str(caught.value)
    has_index = "shard-00001.tar" in words
    assert ("--verify lists" in str(caught.value)) == has_index, "without an index there is nothing to verify against"
    assert "\n" not in str(caught.value)


def test_an_index_cannot_lead_out_of_its_folder(copy: Path, tmp_path: Path) -> None:
    shards = json.loads((copy / "index.json").read_text())["shards"]
    for name in ("../../secret", str(tmp_path / "secret")):
        change(copy, shards=[shard | {"name": name} for shard in shards])
        assert open_shards(copy).shards[0] == "shard-00000.tar"


def test_a_folder_of_images_is_no_pack(images_root: Path, tmp_path: Path) -> None:
    assert not is_packed(images_root / "train") and not is_packed(tmp_path / "absent")
