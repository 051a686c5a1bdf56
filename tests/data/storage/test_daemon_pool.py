"""Calls are made, also beside threads that hang; and hanging threads hold up nothing."""

import gc
import subprocess
import sys
import threading

import pytest

from imagenet_opt.data.storage.daemon_pool import DaemonPool


def reading() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "reading"}


def test_results_and_errors_come_back() -> None:
    threads = DaemonPool(3)
    futures = [threads.submit(divmod, 17, n) for n in (5, 0, 3)]
    assert [futures[0].result(10), futures[2].result(10)] == [(3, 2), (5, 2)]
    with pytest.raises(ZeroDivisionError):
        futures[1].result(10)


def test_a_thread_in_the_place_of_one_that_hangs_goes_on() -> None:
    answer, threads = threading.Event(), DaemonPool(1)
    hanging, next_one = threads.submit(answer.wait, 30), threads.submit(int, "7")
    threads.add()
    assert next_one.result(10) == 7
    assert not hanging.done()
    answer.set()


def test_what_is_cancelled_is_not_called() -> None:
    answer, called, threads = threading.Event(), [], DaemonPool(1)
    threads.submit(answer.wait, 30)
    assert threads.submit(called.append, 1).cancel()
    answer.set()
    threads.submit(called.append, 2).result(10)
    assert called == [2]


def test_threads_end_with_the_last_reference_once_all_calls_are_made() -> None:
    before, answer = reading(), threading.Event()
    threads = DaemonPool(3)
    futures = [threads.submit(answer.wait, 30) for _ in range(5)]
    mine = reading() - before
    assert len(mine) == 3
    del threads
    answer.set()
    assert [future.result(10) for future in futures] == [True] * 5
    for thread in mine:
        thread.join(10)
    assert not reading() - before


def test_threads_end_with_an_owner_whose_method_they_called() -> None:
    class Owner:
        def __init__(self) -> None:
            self.threads = DaemonPool(3)

        def call(self) -> int:
            return 1

    before, owner = reading(), Owner()
    assert [owner.threads.submit(owner.call).result(10) for _ in range(6)] == [1] * 6
    mine = reading() - before
    del owner
    gc.collect()
    for thread in mine:
        thread.join(10)
    assert not reading() - before


def test_a_process_with_a_hanging_thread_comes_to_its_end() -> None:
    package = "imagenet_opt.data.storage.daemon_pool"
    command = f"import threading; from {package} import DaemonPool; DaemonPool(1).submit(threading.Event().wait)"
    done = subprocess.run([sys.executable, "-c", command], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
