"""Packed splits: bytes of samples, requests, and errors of damaged shards."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.data.index.split import Split, joined
from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.data.storage.record_store import RecordStore
from imagenet_opt.errors import BadSample


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


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12, where threads run
def test_samples_are_read_in_any_order_by_threads_and_forks(packed: Path, images_root: Path) -> None:
    index = open_shards(packed)
    assert len(index.containers) > 3 and isinstance(index.offsets, np.memmap)
    assert index.path(0).startswith(f"{packed}/shard-00000.tar: class")
    store, everything = RecordStore(index), np.append(np.random.default_rng(0).permutation(39), [7, 7])
    expected = [(images_root / "train" / index.path(i).partition(": ")[2]).read_bytes() for i in everything]
    assert store.read_many(everything[:0]) == []
    child = os.fork()
    if child == 0:  # pragma: no cover
        os._exit(0 if store.read_many(everything) == expected else 1)
    together = threading.Barrier(8)

    def read(_: int) -> list[bytes]:
        together.wait()
        return store.read_many(everything)

    with ThreadPoolExecutor(8) as threads:
        assert all(actual == expected for actual in threads.map(read, range(8)))
    assert os.waitpid(child, 0)[1] == 0


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
