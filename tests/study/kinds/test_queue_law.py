import math

import numpy as np
import pytest

from imagenet_opt.study.kinds.queue_law import first_wait, hidden_steps, idle_share, mean_step_seconds, simulated_waits

LOAD, COMPUTE, STEPS = 2.66, 1.0, 30
MEASURED = {0: (3.6, None), 1: (2.5, 0), 2: (2.4, 3), 4: (2.2, 6), 8: (1.9, 13)}
"""Published measurements: places of a queue -> mean seconds of 30 steps, number of the step that empties the queue. A
worker holds one batch more while the queue is full; 0 places: no worker."""
SIMULATED = {0: (3.66, None), 1: (2.52, 1), 2: (2.43, 3), 4: (2.25, 6), 8: (1.90, 12)}


@pytest.mark.parametrize("places", MEASURED)
def test_the_law_agrees_with_measurements_and_simulation(places: int) -> None:
    num_ready = places + 1 if places else 0
    seconds, cleared = MEASURED[places]
    expected, drained = SIMULATED[places]
    predicted = mean_step_seconds(LOAD, COMPUTE, num_ready, STEPS)
    assert predicted == pytest.approx(expected, abs=0.006)
    assert predicted == pytest.approx(seconds, abs=0.07)
    waits = simulated_waits([LOAD] * STEPS, COMPUTE, num_ready)
    assert np.mean(waits) + COMPUTE == pytest.approx(predicted)
    if drained is not None and cleared is not None:
        assert int(hidden_steps(LOAD, COMPUTE, num_ready)) == drained == first_wait(waits, 0) - 1
        assert abs(drained - cleared) <= 1


@pytest.mark.parametrize("num_ready", [1, 3, 9, 40])
def test_an_empty_queue_is_as_slow_as_the_loader(num_ready: int) -> None:
    waits = simulated_waits([LOAD] * 500, COMPUTE, num_ready)
    assert waits[-1] + COMPUTE == pytest.approx(LOAD)
    assert mean_step_seconds(LOAD, COMPUTE, num_ready, 100_000) == pytest.approx(LOAD, rel=1e-3)


def test_no_step_waits_for_a_fast_loader() -> None:
    assert hidden_steps(0.9, 1.0, 1) == math.inf
    waits = simulated_waits([0.9] * 50, 1.0, 1)
    assert first_wait(waits, 1e-9) is None
    assert mean_step_seconds(0.9, 1.0, 1, 50) == 1.0
    assert idle_share(waits, 1.0) == pytest.approx(0, abs=1e-12)


def test_a_full_queue_stops_the_loader() -> None:
    """One batch takes 5 s; the two batches made before it cover 2 s."""
    waits = simulated_waits([0.1] * 10 + [5.0] + [0.1] * 10, 1.0, 2)
    assert [step for step, wait in enumerate(waits) if wait > 0] == [10]
    assert waits[10] == pytest.approx(5.0 - 2.0)


def test_a_deeper_queue_hides_late_batches() -> None:
    """With one place a step takes the longer of the two times: on average C + L exp(-C / L) for exponential times."""
    load = np.random.default_rng(1).exponential(0.8, 20_000).tolist()
    idle = [idle_share(simulated_waits(load, 1.0, depth), 1.0) for depth in (1, 2, 8, 64)]
    assert idle == sorted(idle, reverse=True)
    assert idle[0] == pytest.approx(1 - 1 / (1 + 0.8 * math.exp(-1 / 0.8)), abs=0.01)
    assert idle[-1] < 0.01
