"""Schedules computed by hand, on a clock that only sleeping and the test move."""

import pytest

from imagenet_opt.measure.rehearsal.device_timeline import DeviceTimeline


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def timeline_of(clock: Clock, steps_ahead: int = 2) -> DeviceTimeline:
    return DeviceTimeline(steps_ahead=steps_ahead, clock=clock, sleep=clock.sleep)


def test_steps_follow_each_other_and_wait_for_their_copies() -> None:
    clock = Clock()
    timeline = timeline_of(clock, steps_ahead=9)
    assert timeline.submit(1.0, 0.5) == (0.5, 1.5, 0.0)
    assert timeline.submit(1.0, 0.5) == (1.5, 2.5, 0.0)  # copied while the first computes
    assert timeline.submit(1.0, 3.0) == (4.0, 5.0, 1.5)  # the copy engine is free at 1, and done at 4
    clock.now = 7.0
    assert timeline.submit(1.0) == (7.0, 8.0, 2.0)
    assert clock.now == 7.0  # the host never waited
    assert (timeline.busy_seconds, timeline.idle_seconds) == (3.0, 3.5)
    assert timeline.utilization == pytest.approx(3 / (8.0 - 1.5))


def test_the_host_runs_only_so_many_steps_ahead() -> None:
    clock = Clock()
    timeline = timeline_of(clock)
    submitted = []
    for _ in range(5):
        timeline.submit(1.0)
        submitted.append(clock.now)
    assert submitted == [0, 0, 1, 2, 3]
    assert timeline.utilization == 1


def test_a_host_that_synchronizes_each_step_leaves_the_device_idle() -> None:
    clock = Clock()
    timeline = timeline_of(clock)
    for _ in range(3):
        timeline.submit(1.0)
        timeline.synchronize()
        clock.now += 1.0  # the host's own work
    assert [step.began for step in timeline.steps] == [0, 2, 4]
    assert timeline.utilization == 0.5


def test_idleness_does_not_count_during_a_pause() -> None:
    clock = Clock()
    timeline = timeline_of(clock)
    timeline.submit(1.0)
    timeline.submit(1.0)
    clock.now = 2.5
    timeline.pause()  # idle for 0.5
    clock.now = 50.0
    timeline.resume()
    clock.now = 51.5
    timeline.submit(1.0)  # and for 1.5
    assert (timeline.busy_seconds, timeline.idle_seconds) == (2.0, 2.0)
