"""The same items, one item ahead, and no thread is left."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from imagenet_opt.data.background_iterator import BackgroundIterator


class Counting:
    """Yields 0 to num - 1, and sets an event before each item."""

    def __init__(self, num: int) -> None:
        self.begun = [threading.Event() for _ in range(num + 1)]

    def __iter__(self) -> Iterator[int]:
        for i, event in enumerate(self.begun[:-1]):
            event.set()
            yield i


def test_items_are_the_same_and_one_item_ahead() -> None:
    source = Counting(200)
    items = BackgroundIterator(iter(source))
    for i in range(199):
        assert next(items) == i
        assert source.begun[i + 1].wait(10)
        assert not source.begun[i + 2].is_set()
    assert list(items) == [199]


def test_closing_early_ends_the_thread_and_leaves_the_source_usable() -> None:
    source = iter(range(100))
    items = BackgroundIterator(source)
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "batches ahead"]
    assert next(source) in (2, 3)
    assert list(items) == []


def test_a_signal_interrupts_the_wait_for_a_source_that_hangs() -> None:
    begin, answer, before = threading.Event(), threading.Event(), signal.getsignal(signal.SIGUSR1)

    def leave(*_: object) -> None:
        raise InterruptedError("stop")

    def source() -> Iterator[int]:
        begin.wait()
        os.kill(os.getpid(), signal.SIGUSR1)
        answer.wait()
        yield 1

    signal.signal(signal.SIGUSR1, leave)
    items = BackgroundIterator(source())
    try:
        with pytest.raises(InterruptedError, match="stop"):
            begin.set()
            next(items)
    finally:
        begin.set()
        answer.set()
        items.close()
        signal.signal(signal.SIGUSR1, before)
