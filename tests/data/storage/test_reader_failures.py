"""Reads that fail, hang or come back: what is tried again, and what ends the run."""

import errno
import logging
import os
import threading

import numpy as np
import pytest

from imagenet_opt.errors import BadSample, ReadTimeout, StorageFailed
from tests.data.storage.stores import Numbers, batch, reading, texts


def test_transient_errors_are_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    left = [errno.EIO, errno.ESTALE]

    def each(index: int) -> None:
        if index == 2 and left:
            raise OSError(left.pop(), "not now")

    assert reading(Numbers(each), reads_in_flight=2).read((0, 0), np.arange(8)).samples == texts(np.arange(8))
    assert "/proc/sample2: not now; retrying for up to" in caplog.text


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
