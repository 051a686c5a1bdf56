"""Samples in order whatever the storage does, many at a time, ahead of being asked."""

import errno
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from imagenet_opt.data.storage.reader import Reader
from imagenet_opt.data.storage.store import Indices
from imagenet_opt.errors import BadSample, ReadTimeout, StorageFailed


class Numbers:
    """Sample i is the text of i; `each` is called before it is read."""

    def __init__(self, each: Callable[[int], None] = lambda index: None, group: int = 1) -> None:
        self.each = each
        self.group = group
        self.read: list[int] = []

    def __len__(self) -> int:
        return 10_000

    def groups(self, indices: Indices) -> list[Indices]:
        return [np.arange(i, min(i + self.group, len(indices))) for i in range(0, len(indices), self.group)]

    def read_many(self, indices: Indices) -> list[bytes]:
        for index in indices.tolist():
            self.each(index)
            self.read.append(index)
        return [str(index).encode() for index in indices.tolist()]

    def name(self, index: int) -> str:
        return f"/proc/sample{index}"


def reading(
    store: Numbers, *, reads_in_flight: int | str = "auto", timeout_seconds: float = 60.0, **options: int
) -> Reader:
    return Reader(store, reads_in_flight=reads_in_flight, timeout_seconds=timeout_seconds, **options)


def batch(step: int, size: int = 8) -> Indices:
    return np.arange(step * size, (step + 1) * size)[::-1].copy()


def texts(indices: Indices) -> list[bytes]:
    return [str(i).encode() for i in indices.tolist()]


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("reads_in_flight", [1, 5, "auto"])
def test_samples_come_in_order_with_and_without_a_forecast(reads_in_flight: int | str, group: int) -> None:
    reader = reading(Numbers(group=group), reads_in_flight=reads_in_flight)
    for step in range(20):
        wrong = 100 if step == 7 else 0  # a forecast that does not come true
        following = [((wrong, s), batch(s + wrong)) for s in range(step + 1, step + 4)]
        assert reader.read((0, step), batch(step), following).samples == texts(batch(step))
    assert reader.read_now(np.array([5, 3])) == [b"5", b"3"]


def test_what_was_asked_for_is_kept_when_fewer_reads_are_allowed() -> None:
    """The first answers show that the storage is quick; by then much is on its way."""
    done = threading.Event()
    store = Numbers(lambda index: done.set() if index == 47 else None)
    reader = reading(store)
    for step in range(10):
        following = [((0, s), batch(s)) for s in range(step + 1, 10)]
        assert reader.read((0, step), batch(step), following).samples == texts(batch(step))
        assert done.wait(10)
    assert sorted(store.read) == list(range(80))


def test_what_comes_next_is_read_before_it_is_asked_for() -> None:
    done = threading.Event()
    store = Numbers(lambda index: done.set() if index == 15 else None)
    reader = reading(store, reads_in_flight=4)
    reader.read((0, 0), batch(0), [((0, 1), batch(1))])
    assert done.wait(10)


def test_no_more_requests_than_allowed_run_at_a_time() -> None:
    lock, running, most = threading.Lock(), 0, 0
    together = threading.Barrier(3, timeout=10)

    def each(index: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()  # nobody goes on before three are here
        with lock:
            running -= 1

    reader = reading(Numbers(each), reads_in_flight=3)
    for step in range(4):
        reader.read((0, step), batch(step, 9))
    assert most == 3


class ThreadClock(threading.local):
    """Takes the place of the module `time`: in each thread only the reads of that thread take time."""

    now = 0.0
    monotonic = staticmethod(time.monotonic)

    def perf_counter(self) -> float:
        return self.now


class Storage(Numbers):
    """Each request takes `seconds` of the clock; `most` is how many ever ran together."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.seconds, self.lock, self.running, self.most = seconds, threading.Lock(), 0, 0
        self.clock = ThreadClock()
        for module in ("reader", "requests", "outage"):
            monkeypatch.setattr(f"imagenet_opt.data.storage.{module}.time", self.clock)

    def read_many(self, indices: Indices) -> list[bytes]:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.clock.now += self.seconds
        samples = super().read_many(indices)
        with self.lock:
            self.running -= 1
        return samples


@pytest.mark.parametrize("seconds", [0.03, 0.0])
def test_slow_storage_is_asked_for_many_and_quick_storage_for_one_at_a_time(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(seconds, monkeypatch)
    reader = reading(storage)
    for step in range(6):
        storage.most = 0
        found = reader.read((0, step), batch(step, 64), [((0, step + 1), batch(step + 1, 64))])
        assert found.samples == texts(batch(step, 64))
    if seconds:
        assert found.reads_in_flight >= 32
    else:
        assert found.reads_in_flight == 1 and storage.most <= 1


def test_storage_that_becomes_slow_is_read_at_once_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(0.0, monkeypatch)
    reader = reading(storage)
    for step in range(6):
        found = reader.read((0, step), batch(step, 64))
    assert found.reads_in_flight == 1
    storage.seconds = 0.05
    found = reader.read((0, 6), batch(6, 64))
    assert found.samples == texts(batch(6, 64))
    assert found.reads_in_flight >= 32


def test_the_bytes_ahead_are_bounded() -> None:
    class Large(Numbers):
        def read_many(self, indices: Indices) -> list[bytes]:
            super().read_many(indices)
            return [bytes(10_000) for _ in indices]

    store = Large()
    reader = reading(store, reads_in_flight=500, max_bytes=200_000)
    most = 0
    for step in range(200):
        following = (((0, s), batch(s)) for s in range(step + 1, 10_000))
        reader.read((0, step), batch(step), following)
        most = max(most, sum(index >= (step + 1) * 8 for index in tuple(store.read)))
    assert 0 < most <= 200_000 / 10_000 + 8


def test_transient_errors_are_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    left = [errno.EIO, errno.ESTALE]

    def each(index: int) -> None:
        if index == 2 and left:
            raise OSError(left.pop(), "not now")

    assert reading(Numbers(each), reads_in_flight=2).read((0, 0), np.arange(8)).samples == texts(np.arange(8))
    assert "/proc/sample2: not now; trying again" in caplog.text


@pytest.mark.parametrize("group", [1, 4])
def test_a_file_that_fails_while_others_do_not_is_bad_alone(group: int) -> None:
    def each(index: int) -> None:
        if index == 5:
            raise OSError(errno.EIO, "not now")

    found = reading(Numbers(each, group), reads_in_flight=2, timeout_seconds=1.0).read((0, 0), np.arange(8)).samples
    assert isinstance(found[5], BadSample)
    assert "cannot read /proc/sample5: not now" in str(found[5])
    assert "data.root" in str(found[5])
    assert [f for i, f in enumerate(found) if i != 5] == [str(i).encode() for i in range(8) if i != 5]


@pytest.mark.parametrize(("reads_in_flight", "group"), [(1, 1), (5, 4), ("auto", 1)])
def test_storage_that_fails_as_a_whole_ends_the_run_in_one_line(reads_in_flight: int | str, group: int) -> None:
    tries: list[int] = []

    def each(index: int) -> None:
        if index >= 8:
            tries.append(index)
            raise OSError(errno.EIO, "Input/output error")

    reader = reading(Numbers(each, group), reads_in_flight=reads_in_flight, timeout_seconds=1.0)
    reader.read((0, 0), batch(0))
    reader.store.each = lambda index: each(index + 8)
    with pytest.raises(
        StorageFailed, match=r"/proc .*fails: Input/output error for 0\.5 s, reading /proc/sample\d+"
    ) as told:
        reader.read((0, 1), batch(1))
    assert "data.read_timeout=1" in str(told.value)
    assert "\n" not in str(told.value)


def test_an_outage_shorter_than_the_patience_is_only_told() -> None:
    over = threading.Event()

    def each(index: int) -> None:
        if not over.is_set():
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    timer = threading.Timer(0.3, over.set)
    timer.start()
    assert reading(Numbers(each), timeout_seconds=60).read((0, 0), batch(0)).samples == texts(batch(0))
    timer.join()


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("code", [errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOTDIR])
def test_what_is_gone_or_closed_is_bad_at_once_and_alone(group: int, code: int) -> None:
    tries = []

    def each(index: int) -> None:
        if index == 6:
            tries.append(index)
            raise OSError(code, os.strerror(code))

    found = reading(Numbers(each, group)).read((0, 0), np.arange(8)).samples
    assert [isinstance(sample, BadSample) for sample in found] == [i == 6 for i in range(8)]
    assert str(found[6]).startswith(f"cannot read /proc/sample6: {os.strerror(code)}; ")
    assert "data.root" in str(found[6])
    assert len(tries) <= 2  # once together with its group, once alone


@pytest.mark.parametrize("reads_in_flight", [1, 4])
def test_a_request_without_an_answer_is_made_once_more_and_then_told(
    reads_in_flight: int, caplog: pytest.LogCaptureFixture
) -> None:
    answer = threading.Event()
    reader = reading(
        Numbers(lambda index: answer.wait(30) and None if index == 3 else None),
        reads_in_flight=reads_in_flight,
        timeout_seconds=0.2,
    )
    try:
        with caplog.at_level(logging.WARNING), pytest.raises(ReadTimeout, match=r"/proc/sample3 on /proc .*read_time"):
            reader.read((0, 0), np.arange(8))
        assert "reading /proc/sample3; asking again" in caplog.text
    finally:
        answer.set()


def test_what_hangs_among_quick_requests_is_called_by_its_own_name(caplog: pytest.LogCaptureFixture) -> None:
    """Several of them are one task, whose first has long been answered."""
    answer, calls = threading.Event(), []

    def each(index: int) -> None:
        calls.append(index)
        if index == 1011 and calls.count(1011) == 1:
            answer.wait(30)

    reader = reading(Numbers(each), timeout_seconds=1.0)
    try:
        while reader.read((0, 0), batch(0)).reads_in_flight > 1:
            pass
        assert reader.read((0, 1), np.arange(1000, 1016)).samples == texts(np.arange(1000, 1016))
        assert "reading /proc/sample1011; asking again" in caplog.text
        assert [calls.count(index) for index in range(1000, 1011)] == [1] * 11
    finally:
        answer.set()


def test_what_keeps_others_from_their_turn_is_called_by_its_own_name(caplog: pytest.LogCaptureFixture) -> None:
    """What was read ahead hangs, and nobody wants it any more."""
    answer, hanging = threading.Event(), threading.Event()

    def each(index: int) -> None:
        if index == 77:
            hanging.set()
            answer.wait(30)

    reader = reading(Numbers(each), reads_in_flight=1, timeout_seconds=1.0)
    try:
        reader.read((0, 0), batch(0), [((0, 1), np.array([77]))])
        assert hanging.wait(10)
        assert reader.read((5, 0), batch(5)).samples == texts(batch(5))
        assert "reading /proc/sample77; asking again" in caplog.text
    finally:
        answer.set()


def test_the_second_request_may_succeed() -> None:
    answer, calls = threading.Event(), []

    def each(index: int) -> None:
        calls.append(index)
        if calls.count(3) == 1 and index == 3:
            answer.wait(30)

    try:
        reader = reading(Numbers(each), reads_in_flight=4, timeout_seconds=0.2)
        assert reader.read((0, 0), np.arange(8)).samples == texts(np.arange(8))
    finally:
        answer.set()


def test_one_request_that_hangs_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """With one request at a time, as for quick storage."""
    answer, calls = threading.Event(), []

    def each(index: int) -> None:
        calls.append(index)
        if index == 3 and calls.count(3) == 1:
            answer.wait(30)

    reader = reading(Numbers(each), reads_in_flight=1, timeout_seconds=0.3)
    try:
        with caplog.at_level(logging.WARNING):
            for step in range(4):
                fetched = reader.read((0, step), batch(step), [((0, step + 1), batch(step + 1))])
                assert fetched.samples == texts(batch(step))
        assert "reading /proc/sample3; asking again" in caplog.text
    finally:
        answer.set()


def test_a_mistake_in_a_store_is_not_taken_for_silence() -> None:
    def each(index: int) -> None:
        raise ZeroDivisionError("a mistake")

    with pytest.raises(ZeroDivisionError, match="a mistake"):
        reading(Numbers(each), timeout_seconds=20).read((0, 0), batch(0))


def read_in_child(reader: Reader) -> None:
    assert reader.read((0, 1), batch(1), [((0, 2), batch(2))]).samples == texts(batch(1))


def test_a_forked_process_reads_for_itself() -> None:
    """What the parent has asked for, or is being answered, does not reach its child."""
    answer = threading.Event()
    reader = reading(Numbers(lambda index: answer.wait(30) and None if index >= 8 else None), reads_in_flight=2)
    reader.read((0, 0), batch(0), [((0, 1), batch(1)), ((0, 2), batch(2))])
    context = multiprocessing.get_context("fork")
    reader.store.each = lambda index: None
    child = context.Process(target=read_in_child, args=(reader,))
    child.start()
    child.join(20)
    try:
        assert child.exitcode == 0
    finally:
        answer.set()
        child.kill()
