"""Schedules computed by hand, on a clock that only sleeping and the test move."""

import pytest

from imagenet_opt.measure.rehearsal.device_timeline import DeviceTimeline


class Clock(DeviceTimeline):
    """A timeline on its own clock, `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_steps_follow_each_other_and_wait_for_their_copies() -> None:
    timeline = Clock()
    assert timeline.submit(1.0, 0.5) == 0.0  # from 0.5 to 1.5
    assert timeline.submit(1.0, 0.5) == 0.0  # to 2.5; copied while the first computes
    assert timeline.submit(1.0, 3.0) == 2.0  # the copy engine is free at 1.5, when the host is, and done at 4.5
    timeline.now = 7.0
    assert timeline.submit(1.0) == 1.5
    assert (timeline.busy_seconds, timeline.idle_seconds) == (3.0, 3.5)
    assert timeline.utilization == pytest.approx(3 / (8.0 - 1.5))


def test_idleness_does_not_count_during_a_pause() -> None:
    timeline = Clock()
    timeline.submit(1.0)
    timeline.submit(1.0)
    timeline.now = 2.5
    timeline.pause()  # idle for 0.5
    timeline.now = 50.0
    timeline.resume()
    timeline.now = 51.5
    timeline.submit(1.0)  # and for 1.5
    assert (timeline.busy_seconds, timeline.idle_seconds) == (2.0, 2.0)
