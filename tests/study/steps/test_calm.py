"""Cycles beside programs that use some percent of the CPUs."""

from collections.abc import Callable

import pytest

from imagenet_opt.doctor.environment.neighbours import Occupancy
from imagenet_opt.study.steps import calm
from imagenet_opt.study.steps.calm import Cycle, calm_cycles

Cycles = Callable[..., calm.Calm]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Cycles:
    """Measures cycles with these percents of others; each takes a second per image, and the last ones repeat."""

    def measured(
        *percents: float,
        num_images: tuple[float, ...] = (),
        least: float | None = None,
        enough_at: int = 0,
        seconds: float = 0.0,
    ) -> calm.Calm:
        done = [0]

        class Others:
            def start(self) -> None: ...

            def stop(self) -> Occupancy:
                return Occupancy(1.0, percents[min(done[0], len(percents)) - 1], 0.0, 0.0, ())

        def cycle() -> Cycle | None:
            done[0] += 1
            if percents[min(done[0], len(percents)) - 1] < 0:
                return Cycle({}) if percents[done[0] - 1] == RESTART else None
            images = num_images[done[0] - 1] if num_images else 1.0
            return Cycle({"row": (images, 1.0)}, is_enough=done[0] >= enough_at)

        monkeypatch.setattr(calm, "Neighbours", Others)
        return calm_cycles(cycle, seconds=seconds, least_percent=least)

    return measured


RESTART, END = -1.0, -2.0


def test_six_calm_cycles_count_and_their_rate_is_images_by_seconds(measured: Cycles) -> None:
    result = measured(0, 50, 1, 2, 50, 0, 3, 1, num_images=(10, 1, 20, 30, 1, 40, 50, 60))
    assert result == calm.Calm({"row": 35.0}, 3.0, 2)


def test_earlier_measurements_know_what_is_calm(measured: Cycles) -> None:
    """Without them, a program that runs all the time would not be noticed."""
    assert measured(50.0).num_discarded == 0
    assert measured(*[50.0] * 6, *[1.0] * 6, least=0.0) == calm.Calm({"row": 1.0}, 1.0, 6)
    assert measured(50.0, least=0.0) == calm.Calm({"row": 1.0}, 50.0, 12)
    assert measured(*[50.0] * 3, 1.0, least=0.0, seconds=10.0) == calm.Calm({"row": 1.0}, 1.0, 3)
    assert measured(1.0, 50.0, least=0.0, seconds=10.0) == calm.Calm({"row": 1.0}, 50.0, 20)


def test_a_measurement_goes_on_until_it_is_enough(measured: Cycles) -> None:
    assert measured(0.0, num_images=(1.0,) * 6 + (8.0,) * 2, enough_at=8) == calm.Calm({"row": 22 / 8}, 0.0, 0)
    assert measured(0.0, num_images=(1.0,) * 9 + (11.0,), seconds=10.0) == calm.Calm({"row": 2.0}, 0.0, 0)


def test_cycles_before_a_restart_do_not_count(measured: Cycles) -> None:
    images = (9.0,) * 3 + (1.0,) * 9
    assert measured(0, 0, RESTART, 0, num_images=images) == calm.Calm({"row": 1.0}, 0.0, 0)
    assert measured(*[0.0] * 7, RESTART, END, enough_at=9) == calm.Calm({}, 0.0, 0)


def test_the_cycles_before_the_end_count(measured: Cycles) -> None:
    assert measured(0, 0, END) == calm.Calm({"row": 1.0}, 0.0, 0)
