"""The next item while the present one is used."""

import threading
from collections.abc import Generator, Iterator
from queue import Empty, Full, Queue
from typing import TypeVar

T = TypeVar("T")
_POLL_SECONDS = 0.2


def ahead(source: Iterator[T]) -> Generator[T, None, None]:
    """Items of `source`, one of them made in advance by a thread. An error of `source` is raised in its place.

    Closing the generator ends the thread, once `source` has given the item that it is at. An error that a signal
    handler raises in here is not kept waiting for that.
    """
    queue: Queue[tuple[T | None, BaseException | None]] = Queue(maxsize=1)
    closed = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not closed.is_set():
            try:
                return queue.put((item, error), timeout=_POLL_SECONDS)
            except Full:
                continue

    def fetch() -> None:
        try:
            for item in source:
                put(item, None)
                if closed.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=fetch, daemon=True, name="batches ahead")
    thread.start()
    try:
        while True:
            try:
                item, error = queue.get(timeout=_POLL_SECONDS)
            except Empty:
                continue
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    except GeneratorExit:
        closed.set()
        thread.join()
    finally:
        closed.set()
