"""One item in advance, the same items, and no thread left behind."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from imagenet_opt.data.ahead import ahead


def test_the_items_are_the_same_and_the_next_one_is_fetched_unasked() -> None:
    reached = [threading.Event() for _ in range(5)]

    def source() -> Iterator[int]:
        for i in range(5):
            reached[i].set()
            yield i

    items = ahead(source())
    assert next(items) == 0
    assert reached[1].wait(10)
    assert list(items) == [1, 2, 3, 4]


def test_an_error_comes_in_its_place() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise KeyError("lost")

    items = ahead(source())
    assert next(items) == 1
    with pytest.raises(KeyError, match="lost"):
        next(items)


def test_closing_early_ends_the_thread_and_leaves_the_source_usable() -> None:
    source = iter(range(100))
    items = ahead(source)
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "batches ahead"]
    assert next(source) in (3, 4, 5)


def test_a_signal_is_not_kept_waiting_by_a_source_that_hangs() -> None:
    answer, before = threading.Event(), signal.getsignal(signal.SIGUSR1)

    def leave(*_: object) -> None:
        raise InterruptedError("stop")

    def source() -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGUSR1)
        answer.wait()
        yield 1

    signal.signal(signal.SIGUSR1, leave)
    try:
        with pytest.raises(InterruptedError, match="stop"):
            next(ahead(source()))
    finally:
        answer.set()
        signal.signal(signal.SIGUSR1, before)
