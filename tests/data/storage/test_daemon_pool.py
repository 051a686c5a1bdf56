"""Threads make calls, and threads that hang block nothing."""

import gc
import subprocess
import sys
import threading

import pytest

from imagenet_opt.data.storage.daemon_pool import DaemonPool


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "reading"}


def join(threads: set[threading.Thread]) -> None:
    for thread in threads:
        thread.join(10)
    assert not reading_threads() & threads


def test_results_and_errors_come_back() -> None:
    threads = DaemonPool(3)
    futures = [threads.submit(divmod, 17, n) for n in (5, 0, 3)]
    assert [futures[0].result(10), futures[2].result(10)] == [(3, 2), (5, 2)]
    with pytest.raises(ZeroDivisionError):
        futures[1].result(10)


def test_an_added_thread_replaces_a_thread_that_hangs() -> None:
    answer, threads = threading.Event(), DaemonPool(1)
    hanging, next_one = threads.submit(answer.wait, 30), threads.submit(int, "7")
    threads.add()
    assert next_one.result(10) == 7
    assert not hanging.done()
    answer.set()


def test_cancelled_calls_are_not_made() -> None:
    answer, called, threads = threading.Event(), [], DaemonPool(1)
    threads.submit(answer.wait, 30)
    assert threads.submit(called.append, 1).cancel()
    answer.set()
    threads.submit(called.append, 2).result(10)
    assert called == [2]


def test_threads_end_with_the_last_reference_after_all_calls() -> None:
    before, answer = reading_threads(), threading.Event()
    threads = DaemonPool(3)
    futures = [threads.submit(answer.wait, 30) for _ in range(5)]
    started = reading_threads() - before
    assert len(started) == 3
    del threads
    answer.set()
    assert [future.result(10) for future in futures] == [True] * 5
    join(started)


def test_threads_end_with_an_owner_whose_method_they_called() -> None:
    class Owner:
        def __init__(self) -> None:
            self.threads = DaemonPool(3)

        def call(self) -> int:
            return 1

    before, owner = reading_threads(), Owner()
    assert [owner.threads.submit(owner.call).result(10) for _ in range(6)] == [1] * 6
    started = reading_threads() - before
    del owner
    gc.collect()
    join(started)


def test_a_process_with_a_hanging_thread_ends() -> None:
    package = "imagenet_opt.data.storage.daemon_pool"
    command = f"import threading; from {package} import DaemonPool; DaemonPool(1).submit(threading.Event().wait)"
    done = subprocess.run([sys.executable, "-c", command], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
