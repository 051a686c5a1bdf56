"""Makes the next item of an iterator in a thread."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
_SIGNAL_SECONDS = 1.0
"""Longest single wait. A signal that arrives just before a wait is handled only after the wait."""


class BackgroundIterator(Generic[T]):
    """Iterates over `source`, one item ahead: when an item is taken, a thread starts to make the next item.

    An error of `source` is raised instead of its item. The thread is a daemon, so a source that hangs does not delay
    the end of the process.
    """

    def __init__(self, source: Iterator[T]) -> None:
        self._made: SimpleQueue[T | BaseException] = SimpleQueue()
        self._wanted = threading.Semaphore()
        self._stopped = False
        self._thread = threading.Thread(target=self._make, args=(source,), daemon=True, name="batches ahead")
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            with suppress(Empty):
                item = self._made.get(timeout=_SIGNAL_SECONDS)
                break
        if isinstance(item, BaseException):
            self._made.put(StopIteration())  # for the next call
            raise item
        self._wanted.release()
        return item

    def stop(self) -> None:
        """Let the thread end after its current item. Does not wait for the thread."""
        self._stopped = True
        self._wanted.release()

    def close(self) -> None:
        """Stop the thread and wait for its end. `source` may be used elsewhere afterwards."""
        self.stop()
        self._thread.join()

    def _make(self, source: Iterator[T]) -> None:
        try:
            while self._wanted.acquire() and not self._stopped:
                self._made.put(next(source))
        except BaseException as error:
            if not self._stopped:
                return self._made.put(error)
        while not self._made.empty():
            self._made.get()  # frees the memory of an item that was not requested
        self._made.put(StopIteration())
