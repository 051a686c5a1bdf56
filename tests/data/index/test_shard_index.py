"""Packed splits: bytes of samples, requests, and one line for a damaged pack, with the file and the remedy."""

import io
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.shard_index import is_packed, open_shards
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.errors import BadSample, ShardMismatch


def made_up(shard_ids: list[int], offsets: list[int], sizes: list[int]) -> Split:
    """An index without files."""
    return Split(
        place="/nowhere",
        classes=("a",),
        labels=np.zeros(len(sizes), np.int32),
        **joined([b""] * len(sizes)),
        sizes=np.array(sizes),
        containers=tuple(f"shard-{i:05d}.tar" for i in range(max(shard_ids) + 1)),
        container_ids=np.array(shard_ids, np.int32),
        offsets=np.array(offsets),
    )


def groups(index: Split, indices: list[int]) -> list[list[int]]:
    return [group.tolist() for group in RecordStore(index).groups(np.array(indices, dtype=np.int64))]


def test_one_request_reads_neighbours_up_to_4_mib() -> None:
    index = made_up([0, 0, 0, 1], [512, 2048, 2048 + 1000 + 65536, 70000], [1000, 1000, 1000, 1000])
    assert groups(index, [0, 1, 2, 3]) == [[0, 1], [2], [3]]  # 64 KiB between, and another shard
    assert groups(index, [3, 1, 0]) == [[2, 1], [0]]  # positions in the request, in the order of the shard
    assert groups(index, [1, 1, 1]) == [[0, 1, 2]]
    closer = made_up([0, 0], [512, 512 + 1000 + 65535], [1000, 1000])
    assert groups(closer, [0, 1]) == [[0, 1]]
    index = made_up([0] * 9, [i * 2**20 for i in range(9)], [2**20] * 9)
    assert groups(index, list(range(9))) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    large = made_up([0, 0, 0], [0, 512, 6 * 2**20], [512, 5 * 2**20, 512])
    assert groups(large, [0, 1, 2]) == [[0], [1], [2]]


def test_samples_are_read_in_any_order_by_threads(packed: Path, images_root: Path) -> None:
    index = open_shards(packed)
    assert len(index.containers) > 3 and isinstance(index.offsets, np.memmap)
    assert index.path(0).startswith(f"{packed}/shard-00000.tar: class")
    store, everything = RecordStore(index), np.append(np.random.default_rng(0).permutation(39), [7, 7])
    expected = [(images_root / "train" / index.path(i).partition(": ")[2]).read_bytes() for i in everything]
    assert store.read_many(everything[:0]) == []
    together = threading.Barrier(8)

    def read(_: int) -> list[bytes]:
        together.wait()
        return store.read_many(everything)

    with ThreadPoolExecutor(8) as threads:
        assert all(actual == expected for actual in threads.map(read, range(8)))


def test_a_sample_that_differs_from_its_pack_is_a_bad_sample_and_others_are_read(copy: Path) -> None:
    """As where two shards of one size were swapped."""
    store, everything = RecordStore(open_shards(copy)), np.arange(39)
    with open(copy / "shard-00000.tar", "r+b") as shard:
        shard.seek(int(store.split.offsets[1]) + 100)
        shard.write(bytes(20))
    samples = ReadAhead(store, reads_in_flight=1, timeout_seconds=9.0).read((0, 0), everything).samples
    assert [i for i, sample in enumerate(samples) if isinstance(sample, BadSample)] == [1]
    assert f"differs from its pack (data.root); imagenet-opt pack out={copy.parent} --verify" in str(samples[1])


def test_a_shard_cut_after_it_was_opened_is_a_bad_sample_with_place_and_remedy(copy: Path) -> None:
    store = RecordStore(open_shards(copy))
    last = np.flatnonzero(store.split.container_ids == 0)[-1:]
    offset, size = int(store.split.offsets[last[0]]), int(store.split.sizes[last[0]])
    os.truncate(copy / "shard-00000.tar", offset + 10)
    place = rf"shard-00000\.tar ends at byte {offset + 10}, in the middle of {size} bytes at {offset} .*--verify"
    with pytest.raises(BadSample, match=place):
        store.read_many(last)


class Evil:
    def __reduce__(self) -> tuple:
        return os._exit, (66,)


def change(folder: Path, **about: object) -> None:
    content = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(content | about))


Damage = Callable[[Path], object]


def column(name: str, values: np.ndarray) -> Damage:
    return lambda pack: np.save(pack / f"{name}.npy", values)


def content(name: str, content: bytes) -> Damage:
    return lambda pack: (pack / name).write_bytes(content)


def full(value: int, dtype: type = np.int64) -> np.ndarray:
    return np.full(39, value, dtype)


def overflow(pack: Path) -> None:
    for name in ("offsets", "sizes"):
        np.save(pack / f"{name}.npy", full(2**63 - 1))


def as_pipe(name: str) -> Damage:
    return lambda pack: ((pack / name).unlink(), os.mkfifo(pack / name))


def hole(pack: Path) -> None:
    """The last sample is as large as its shard, which is a sparse file."""
    shards = json.loads((pack / "index.json").read_text())["shards"]
    change(pack, shards=[*shards[:-1], shards[-1] | {"bytes": 2**40}])
    sizes = np.load(pack / "sizes.npy")
    sizes[-1] = 2**39
    np.save(pack / "sizes.npy", sizes)


def reverse(name: str) -> Damage:
    return lambda pack: np.save(pack / f"{name}.npy", np.load(pack / f"{name}.npy")[::-1])


np.savez(ARCHIVE := io.BytesIO(), labels=full(0, np.int32))
HEADER = b"{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904,)}".ljust(117) + b"\n"
HUGE = b"\x93NUMPY\x01\x00" + len(HEADER).to_bytes(2, "little") + HEADER + bytes(39 * 4)
SHARD = "shard-00001.tar"
DAMAGE: list[tuple[str, Damage]] = [
    (f"{SHARD}: No such file or directory", lambda pack: (pack / SHARD).unlink()),
    (f"{SHARD} has 1024 bytes, not the ", lambda pack: os.truncate(pack / SHARD, 1024)),
    ("sizes.npy cannot be opened: No such file", lambda pack: (pack / "sizes.npy").unlink()),
    ("offsets.npy has 200 bytes, not 440 bytes for 39 numbers", lambda pack: os.truncate(pack / "offsets.npy", 200)),
    ("labels.npy is damaged: it has numbers outside of 0 to 2", column("labels", full(3, np.int32))),
    ("shard_ids.npy is damaged: it has numbers outside of 0 to ", column("shard_ids", full(-1, np.int32))),
    ("points outside of its shard", column("offsets", full(10**9))),
    ("points outside of its shard", overflow),
    ("is damaged: samples overlap", column("offsets", full(512))),
    ("is damaged", reverse("shard_ids")),
    ("name_offsets.npy is damaged", reverse("name_offsets")),
    ("labels.npy is damaged: it does not match its checksum", reverse("labels")),
    ("labels.npy is object (39,), not 39 numbers of int32", column("labels", np.array([Evil()] * 39, dtype=object))),
    ("labels.npy cannot be opened", content("labels.npy", ARCHIVE.getvalue())),
    ("labels.npy is int32 (4611686018427387904,), not 39 numbers of int32", content("labels.npy", HUGE)),
    ("index.json is damaged: shards.0.bytes: ", lambda pack: change(pack, shards=[{"bytes": 2**70, "crc32": 0}])),
    ("index.json is damaged: samples: ", lambda pack: change(pack, samples=0)),
    ("index.json is damaged: Invalid JSON: recursion limit exceeded", content("index.json", b"[" * 100_000)),
    ("index.json cannot be read: not a regular file", as_pipe("index.json")),
    ("sizes.npy is damaged: it has numbers outside of 0 to ", hole),
    ("is no finished pack: it has no index.json", lambda pack: (pack / "index.json").unlink()),
]


@pytest.mark.parametrize(("words", "damage"), DAMAGE, ids=range(len(DAMAGE)))
def test_an_error_names_the_damaged_file_and_the_remedy(words: str, damage: Damage, copy: Path) -> None:
    damage(copy)
    assert is_packed(copy)
    with pytest.raises(ShardMismatch) as caught:
        open_shards(copy)
    for word in (words, str(copy), "data.root", "pack command again", f"out={copy.parent}", "imagenet-opt pack"):
        assert word in str(caught.value)
    assert ("--verify lists" in str(caught.value)) == (SHARD in words), "only with an index, --verify can run"
    assert "\n" not in str(caught.value)


def test_a_pack_of_a_newer_version_is_not_called_damaged(copy: Path) -> None:
    change(copy, format=99)
    with pytest.raises(ShardMismatch, match=r"format 99, of a newer version.*data\.root") as caught:
        open_shards(copy)
    assert "pack command again" not in str(caught.value)
