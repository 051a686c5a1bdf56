"""What an action takes, with and without those within it; and what is left behind."""

import time
from itertools import pairwise

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.profilers import PassThroughProfiler

from imagenet_opt.run import hook_timer
from imagenet_opt.run.hook_timer import FETCH, HookTimer, attach, detach
from tests.callbacks.conftest import Memory, Project
from tests.conftest import quiet_trainer


def timed() -> tuple[HookTimer, list[tuple[str, float, float]]]:
    """A clock, and the list of its stops."""
    clock, stops = HookTimer(PassThroughProfiler()), []
    clock.stopped.append(lambda *stop: stops.append(stop))
    return clock, stops


def test_own_seconds_leave_out_what_an_action_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 10.0, 10.5, 14.0])  # outer begins, inner 1 to 3, inner 10 to 10.5, outer ends
    monkeypatch.setattr(hook_timer.time, "perf_counter", lambda: next(times))
    clock, stops = timed()
    with clock.profile("outer"):
        for _ in range(2):
            with clock.profile("inner"):
                pass
    assert (clock.seconds["outer"], clock.own_seconds["outer"]) == (14.0, 11.5)
    assert clock.seconds["inner"] == clock.own_seconds["inner"] == 2.5
    assert stops == [("inner", 1.0, 3.0), ("inner", 10.0, 10.5), ("outer", 0.0, 14.0)]


def test_an_action_that_fails_has_ended() -> None:
    clock = HookTimer(PassThroughProfiler())
    with pytest.raises(KeyError), clock.profile("outer"), clock.profile("inner"):
        raise KeyError
    with clock.profile("next"):
        pass
    assert clock.seconds.keys() == {"outer", "inner", "next"}


def test_a_stop_without_its_start_is_no_error_and_times_nothing() -> None:
    clock = HookTimer(PassThroughProfiler())
    clock.stop("never started")
    with clock.profile("outer"):
        clock.stop("never started")
    assert clock.seconds.keys() == {"outer"}


def test_an_action_without_a_stop_ends_with_its_outer_action(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 10.0, 14.0, 20.0, 21.0])  # outer, left and inner begin; outer ends; inner does; next
    monkeypatch.setattr(hook_timer.time, "perf_counter", lambda: next(times))
    clock, stops = timed()
    for action in ("outer", "left", "inner"):
        clock.start(action)
    clock.stop("outer")
    clock.stop("inner")
    with clock.profile("next"):
        pass
    assert stops == [("inner", 3.0, 10.0), ("left", 1.0, 10.0), ("outer", 0.0, 10.0), ("next", 20.0, 21.0)]
    assert clock.own_seconds == {"inner": 7.0, "left": 2.0, "outer": 1.0, "next": 1.0}


def test_users_share_a_clock_and_the_last_gives_all_back() -> None:
    logger = Memory()
    one = quiet_trainer(logger=logger)
    profiler = one.profiler
    clock = attach(one)
    assert attach(one) is clock is one.profiler
    detach(one)
    logger.log_metrics({"loss": 1.0}, step=3)
    assert clock.seconds["[Logger]Memory.log_metrics"] > 0
    assert logger.rows == [(3, {"loss": 1.0})]
    detach(one)
    assert one.profiler is profiler
    assert "log_metrics" not in vars(logger)


def test_a_fit_is_timed_action_by_action() -> None:
    class Watching(Callback):
        def setup(self, trainer, *_, **__) -> None:
            self.clock, self.stops = attach(trainer), []
            self.clock.stopped.append(lambda *stop: self.stops.append(stop))

        def teardown(self, trainer, *_, **__) -> None:
            detach(trainer)

    project, watching = Project(), Watching()
    began = time.perf_counter()
    project.fit(watching)
    wall = time.perf_counter() - began
    clock = watching.clock
    fetches = [(begin, end) for action, begin, end in watching.stops if action == FETCH]
    assert len(fetches) == 20
    assert all(end <= begin for (_, end), (begin, _) in pairwise(fetches))
    assert clock.seconds[FETCH] == pytest.approx(sum(end - begin for begin, end in fetches))
    assert clock.seconds["run_training_batch"] > clock.own_seconds["run_training_batch"] > 0
    assert sum(clock.own_seconds.values()) <= wall
    assert sum(action == "[Logger]Memory.log_metrics" for action, _, _ in watching.stops) == len(project.logger.rows)
