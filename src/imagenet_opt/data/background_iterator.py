"""Makes the next item of an iterable while the present one is used."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
_SIGNAL_SECONDS = 1.0
"""A signal that arrives just before the wait begins does not end it; the handler runs after this time at the latest."""


class BackgroundIterator(Generic[T]):
    """Iterates over `source`, one item ahead: when an item is taken, a thread begins to make the next one.

    An error of `source` is raised in its place. The thread is a daemon: a source that hangs does not delay the end of
    the process.
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
        item = self._next_made()
        if isinstance(item, BaseException):
            self._made.put(StopIteration())  # for whoever asks again
            raise item
        self._wanted.release()
        return item

    def _next_made(self) -> T | BaseException:
        while True:
            with suppress(Empty):
                return self._made.get(timeout=_SIGNAL_SECONDS)

    def stop(self) -> None:
        """Let the thread end after its present item. Does not wait for the thread."""
        self._stopped = True
        self._wanted.release()

    def close(self) -> None:
        """Stop the thread and wait for its end; then `source` may be used elsewhere."""
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
            self._made.get()  # frees the memory of an item that nobody took
        self._made.put(StopIteration())
