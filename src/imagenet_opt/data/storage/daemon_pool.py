"""Threads for reads that may hang forever."""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Calls = SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]


class DaemonPool:
    """`num` threads that make calls, and end after all calls once this object has no reference.

    The end of the process does not wait for the threads, unlike for the threads of a ThreadPoolExecutor.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self._calls: Calls = SimpleQueue()
        weakref.finalize(self, self._calls.put, None).atexit = False
        for _ in range(num):
            self.add()

    def add(self) -> None:
        """Add a thread, to replace a thread that hangs."""
        threading.Thread(target=_work, args=(self._calls,), daemon=True, name="reading").start()

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, call, arguments))
        return future


def _work(calls: Calls) -> None:
    while (wanted := calls.get()) is not None:
        future, call, arguments = wanted
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call(*arguments))
            except BaseException as error:
                future.set_exception(error)
        del wanted, future, call, arguments  # a waiting thread keeps nothing alive, not even this pool
    calls.put(None)  # ends the next thread
