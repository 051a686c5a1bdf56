"""The time of a thread is divided into computing, the queue for a CPU, and waiting."""

import time

import pytest

from imagenet_opt.measure.telemetry.thread_time import ThreadTime, sees_run_queue, thread_time
from tests.measure.telemetry.test_proc_counters import compute


def test_sleeping_is_waiting_and_working_is_computing() -> None:
    began = thread_time()
    time.sleep(0.04)
    slept, cpu = thread_time(), time.thread_time()
    compute(0.04)
    worked, cpu = thread_time().since(slept), time.thread_time() - cpu
    assert slept.since(began).waiting > 0.0399
    assert worked.cpu == pytest.approx(cpu, rel=0.05)
    assert worked.wall == pytest.approx(worked.cpu + worked.queued + worked.waiting, rel=0.05)


def test_waits_are_divided_like_the_work_that_they_waited_for() -> None:
    found = ThreadTime(wall=1.0, cpu=0.1, queued=0.2).waited_for(ThreadTime(wall=2.0, cpu=1.0, queued=0.5))
    assert found == pytest.approx((0.7, 0.35, 0.175)) and found.waiting == pytest.approx(0.175)
    assert ThreadTime(wall=1.0).waited_for(ThreadTime()).waiting == 1.0


def test_a_system_without_the_run_queue_counts_it_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.open", lambda *_: (_ for _ in ()).throw(FileNotFoundError))
    assert thread_time().queued == 0 and not sees_run_queue()
