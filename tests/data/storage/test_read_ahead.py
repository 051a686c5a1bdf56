"""Samples come in order from any storage, with many requests at a time, read ahead."""

import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from imagenet_opt.data.index.folder_index import scan_split
from imagenet_opt.data.storage.read_ahead import ReadConcurrency
from imagenet_opt.data.storage.record_store import RecordStore
from tests.data.storage.stores import Samples, batch, reading, texts


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("reads_in_flight", [1, 5, "auto"])
def test_samples_come_in_order_with_and_without_a_forecast(reads_in_flight: int | str, group: int) -> None:
    reader = reading(Samples(group=group), reads_in_flight=reads_in_flight)
    for step in range(20):
        wrong = 100 if step == 7 else 0  # a forecast that does not come true
        following = [((wrong, s), batch(s + wrong)) for s in range(step + 1, step + 4)]
        assert reader.read((0, step), batch(step), following).samples == texts(batch(step))
    assert reader.read_unplanned(np.array([5, 3])) == [b"5", b"3"]


def test_no_more_requests_than_allowed_run_at_a_time() -> None:
    lock, running, most = threading.Lock(), 0, 0
    together = threading.Barrier(3, timeout=600)

    def each(index: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()  # no read continues before three reads run
        with lock:
            running -= 1

    reader = reading(Samples(each), reads_in_flight=3)
    for step in range(4):
        reader.read((0, step), batch(step, 9))
    assert most == 3


@pytest.mark.parametrize("reads_in_flight", [1, 40])
def test_memory_holds_whatever_the_files_claim(tmp_path: Path, reads_in_flight: int) -> None:
    """Sparse files: most are larger than the first estimate, and one is larger than allowed."""
    limit, sizes = 2**24, [2**23 + 1, *(2**22 - i for i in range(47))]
    (folder := tmp_path / "train/a").mkdir(parents=True)
    for i, size in enumerate(sizes):
        with open(folder / f"{i:02}.jpg", "wb") as file:
            file.truncate(size)
    store = RecordStore(scan_split(tmp_path, "train"))
    reader = reading(store, reads_in_flight=reads_in_flight, max_bytes=limit)
    tracemalloc.start()
    found, rounds = dict[int, int | str](), 0
    for step in range(6):
        rest = batch(step)
        samples = reader.read((0, step), rest, [((0, s), batch(s)) for s in range(step + 1, 6)]).samples
        while True:
            for i, each in zip(rest.tolist(), samples, strict=True):
                if each is not None:
                    found[i] = len(each) if isinstance(each, bytes) else str(each)
            samples.clear()
            if not len(rest := np.array([i for i in rest.tolist() if i not in found], np.int64)):
                break
            samples, rounds, each = reader.read_unplanned(rest), rounds + 1, None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "00.jpg" in str(found.pop(0)) and found == dict(enumerate(sizes[1:], 1))
    assert rounds and peak < limit + 2 * 2**22 + 2**20  # the sample that must be read, and objects of Python
    assert dict(reader.read_each(np.arange(1, 9))).keys() == set(range(1, 9))


def settled(depth: ReadConcurrency, latency: float, line: float = 0.0, *, batches: int = 400) -> list[int]:
    """Requests in flight after each batch of 64. A request takes `latency`, and occupies a shared line for `line`
    seconds."""
    actual = []
    for _ in range(batches):
        depth.update(latency=max(latency, depth.now * line), pace=2e-3, most=1200, answers=64)
        actual.append(depth.now)
    return actual


@pytest.mark.parametrize(("latency", "least"), [(0.02, 10), (0.329, 165), (2.0, 512)])
def test_as_many_requests_as_become_due_during_one_answer(latency: float, least: int) -> None:
    actual = settled(ReadConcurrency(), latency)
    assert min(actual[60:]) >= least
    assert max(actual) <= 1.6 * least


def test_the_requests_follow_changes_of_the_storage() -> None:
    depth = ReadConcurrency()
    assert settled(depth, 0.0005)[-1] == 1
    assert settled(depth, 0.329)[-1] >= 165
    assert settled(depth, 0.02)[-1] <= 20
    assert settled(depth, 0.001, 0.05)[-1] <= 64 * 8
    assert settled(depth, 0.329, batches=1500)[-1] >= 165
