"""Samples from the cache are those of the storage, and each is fetched once, by any threads and processes."""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.storage.cache_setup import open_cache
from imagenet_opt.data.storage.cached_store import CachedStore, Counts
from imagenet_opt.data.storage.read_pool import ReadPool
from imagenet_opt.data.storage.store import Indices
from tests.data.storage.stores import Listed, Numbers, batch, reading, texts

NUM = 60
URL = "s3://bucket/train"
Open = Callable[..., CachedStore]


@pytest.fixture
def storage(tmp_path: Path) -> Listed:
    rng = np.random.default_rng(0)
    return Listed([rng.bytes(int(size)) for size in rng.integers(0, 200, NUM)], tmp_path / "reads")


@pytest.fixture
def reopen(storage: Listed, tmp_path: Path) -> Open:
    """Opens the cache of `storage` as a new run would. most_bytes: see `open_cache`."""

    def open_store(most_bytes: float = np.inf, **options: float) -> CachedStore:
        folder = open_cache(tmp_path / "samples/f1", URL, storage.sizes, most_bytes=most_bytes)
        assert folder is not None
        return CachedStore(storage, folder, **options)

    return open_store


def read_all(store: CachedStore, seed: int = 0, portion: int = 7) -> None:
    """Read all samples in random order, and some twice, and compare them with those of the storage."""
    order = np.random.default_rng(seed).permutation(np.concatenate([np.arange(NUM), np.arange(5)]))
    for start in range(0, len(order), portion):
        indices = order[start : start + portion]
        assert store.read_many(indices) == [store.store.encoded[index] for index in indices]


@pytest.mark.parametrize("segment_bytes", [2**26, 500])
def test_samples_are_those_of_the_storage_and_are_fetched_once(
    storage: Listed, reopen: Open, segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagenet_opt.data.storage.cache_folder._SEGMENT_BYTES", segment_bytes)
    store = reopen()
    for seed in range(3):
        read_all(store, seed, portion=1 + 6 * seed)
    assert sorted(storage.read) == list(range(NUM))
    read_all(reopen(), seed=9)  # after a restart
    assert sorted(storage.read) == list(range(NUM))
    starts = np.cumsum(storage.sizes) - storage.sizes
    segments = {f"{start // segment_bytes:05d}" for start in starts.tolist()}
    assert {file.name for file in (store.folder.path / "segments").iterdir()} == segments


def test_hits_and_misses_are_counted(storage: Listed, reopen: Open) -> None:
    store = reopen()
    store.read_many(np.array([4, 2, 4]))
    store.read_many(np.array([2, 3]))
    fetched, hit = storage.sizes[[2, 3, 4]].sum(), storage.sizes[2]
    assert store.take_counts() == Counts(hits=1, misses=3, hit_bytes=hit, fetched_bytes=fetched, damaged=0)
    assert store.take_counts() == Counts()


def test_hits_are_one_group_and_misses_groups_of_the_storage(reopen: Open) -> None:
    store = reopen()
    store.read_many(np.array([1, 5]))
    assert [group.tolist() for group in store.groups(np.array([0, 5, 2, 1, 3]))] == [[1, 3], [0, 2], [4]]
    assert [group.tolist() for group in store.groups(np.array([5, 1]))] == [[0, 1]]
    assert store.groups(np.array([], np.int64)) == []


def test_a_pickled_store_uses_the_same_cache(storage: Listed, reopen: Open) -> None:
    store = reopen()
    read_all(store)
    store.take_counts()
    other = pickle.loads(pickle.dumps(store))
    read_all(other, seed=1)
    assert sorted(storage.read) == list(range(NUM)) and other.take_counts().misses == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_on_disk_is_found_after_a_restart_and_repaired(storage: Listed, reopen: Open, damage: str) -> None:
    read_all(reopen())
    (segment,) = (reopen().folder.path / "segments").iterdir()
    content = bytearray(segment.read_bytes())
    begin = int(storage.sizes[:30].sum())  # of sample 30
    content[begin] ^= 1
    if damage == "remove":
        segment.unlink()
    else:
        segment.write_bytes(content if damage == "flip" else content[: begin + 1])
    lost = {"flip": [30], "cut": list(range(30, NUM)), "remove": list(range(NUM))}[damage]
    lost = [index for index in lost if storage.sizes[index] and (index != 30 or storage.sizes[30] > 1)]
    storage.file.write_text("")
    store = reopen()
    read_all(store)
    assert sorted(storage.read) == lost and store.take_counts().damaged == len(lost)
    read_all(reopen(), seed=1)
    assert sorted(storage.read) == lost


def test_a_segment_that_is_removed_during_the_run_is_fetched_again(storage: Listed, reopen: Open) -> None:
    store = reopen()
    read_all(store)
    (store.folder.path / "segments/00000").unlink()
    read_all(store)
    assert len(storage.read) > NUM


def test_a_killed_process_leaves_whole_samples_and_no_claims(
    storage: Listed, reopen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def die_halfway(descriptor: int, content: bytes, offset: int) -> int:
        if len(content) != storage.sizes[31]:
            return pwrite(descriptor, content, offset)
        pwrite(descriptor, content[: len(content) // 2], offset)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def write_half() -> None:
        monkeypatch.setattr(os, "pwrite", die_halfway)
        store = reopen()
        for index in (*range(30), 31):
            if storage.sizes[index] != storage.sizes[31] or index == 31:
                store.read_many(np.array([index]))

    storage.encoded[31] = b"x" * 201  # no other sample has this size
    child = multiprocessing.get_context("fork").Process(target=write_half)
    child.start()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    store = reopen(patience_seconds=30)  # a claim that was left behind would be waited for
    assert store.folder.state[:32].tolist() == [1] * 30 + [0, 0]
    storage.file.write_text("")
    read_all(store)
    assert sorted(storage.read) == list(range(30, NUM)) and store.take_counts().damaged == 0


def test_two_processes_with_eight_threads_fetch_each_sample_once(storage: Listed, reopen: Open) -> None:
    context = multiprocessing.get_context("fork")
    together = context.Barrier(2)
    store = reopen(patience_seconds=30)

    def read_in_threads(number: int) -> None:
        together.wait(30)
        failed: list[BaseException] = []
        threads = [threading.Thread(target=read, args=(8 * number + i, failed)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(len(failed))

    def read(seed: int, failed: list[BaseException]) -> None:
        try:
            read_all(store, seed, portion=1 + seed)
        except BaseException as error:
            failed.append(error)

    children = [context.Process(target=read_in_threads, args=(number,)) for number in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    assert sorted(storage.read) == list(range(NUM))


def read_in_thread(store: CachedStore, begun: threading.Event) -> threading.Thread:
    """A thread whose request for sample 3 has begun."""
    thread = threading.Thread(target=store.read_many, args=(np.array([3]),), daemon=True)
    thread.start()
    assert begun.wait(10)
    return thread


def test_a_thread_waits_for_the_request_of_another(
    storage: Listed, reopen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, second_waits = threading.Event(), threading.Event()
    storage.each = lambda index: (reading.set(), second_waits.wait(10))
    monkeypatch.setattr("imagenet_opt.data.storage.cached_store.time.sleep", lambda seconds: second_waits.set())
    store = reopen()
    read_in_thread(store, reading)
    assert store.read_many(np.array([3])) == [storage.encoded[3]]
    assert second_waits.is_set() and storage.read == [3]


def test_a_thread_does_not_wait_for_ever_for_a_request_that_hangs(storage: Listed, reopen: Open) -> None:
    reading, end = threading.Event(), threading.Event()

    def hang_first(index: int) -> None:
        if not reading.is_set():
            reading.set()
            end.wait(10)

    storage.each = hang_first
    store = reopen(patience_seconds=0)
    first = read_in_thread(store, reading)
    assert store.read_many(np.array([3])) == [storage.encoded[3]]
    assert first.is_alive()
    end.set()


def test_an_error_of_the_storage_is_raised_and_ends_the_claims(storage: Listed, reopen: Open) -> None:
    def fail(index: int) -> None:
        if index == 5:
            raise OSError(5, "Input/output error")

    storage.each = fail
    store = reopen(patience_seconds=30)
    with pytest.raises(OSError, match="Input/output error"):
        store.read_many(np.array([4, 5, 6, 7]))
    storage.each = lambda index: None
    read_all(store)
    read_all(store)
    assert sorted(set(storage.read)) == list(range(NUM)) and storage.read.count(7) == 1


def test_many_hits_do_not_hide_the_latency_of_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 32 samples comes from a storage that takes a third of a second."""
    clock = Clock()
    for module in ("read_ahead", "read_pool"):
        monkeypatch.setattr(f"imagenet_opt.data.storage.{module}.time.perf_counter", clock)
    numbers = Numbers(lambda index: clock.spend(0.3))
    sizes = np.array([len(str(index)) for index in range(len(numbers))])
    folder = open_cache(tmp_path / "samples/f1", URL, sizes, most_bytes=np.inf)
    assert folder is not None
    for index in np.flatnonzero(np.arange(len(numbers)) % 32):
        folder.write(int(index), str(index).encode())
    store = CachedStore(numbers, folder)
    pool = ReadPool(store, timeout_seconds=60)
    for step in range(8):
        indices = batch(step, 16)
        groups = store.groups(indices)
        for group in groups:
            task = pool.start([group], [indices[group]], 1, stop_when_slow=False)
            assert pool.answer(task) == [texts(indices[group])]
    assert pool.latency() == pytest.approx(0.3)


class Clock:
    """Time that passes in the thread of a read alone."""

    def __init__(self) -> None:
        self.local = threading.local()

    def __call__(self) -> float:
        return getattr(self.local, "now", 0.0)

    def spend(self, seconds: float) -> None:
        self.local.now = self() + seconds


def test_batches_are_read_ahead_through_the_cache(storage: Listed, reopen: Open) -> None:
    reader = reading(reopen())
    portions: list[Indices] = [np.random.default_rng(step).permutation(NUM)[:8] for step in range(20)]
    for step, indices in enumerate(portions):
        following = [((0, later), portions[later]) for later in range(step + 1, min(step + 4, 20))]
        samples = reader.read((0, step), indices, following).samples
        assert samples == [storage.encoded[index] for index in indices]
    assert len(storage.read) == len(set(storage.read))
