"""The law of the queue beside a simulation, published measurements and a real loader."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.study.kinds.queue import (
    Drained,
    hidden_steps,
    mean_step_seconds,
    queue_table,
    run,
    simulated_waits,
)
from tests.conftest import write_images
from tests.study.studies import small_request

LOAD, COMPUTE, STEPS = 2.66, 1.0, 30
MEASURED = {1: (2.5, 0), 2: (2.4, 3), 4: (2.2, 6), 8: (1.9, 13)}
"""Published measurements: places of a queue -> mean seconds of 30 steps, number of the step that empties the queue. A
worker holds one batch more while the queue is full."""
SIMULATED = {1: (2.52, 1), 2: (2.43, 3), 4: (2.25, 6), 8: (1.90, 12)}


@pytest.mark.parametrize("places", MEASURED)
def test_the_law_agrees_with_measurements_and_simulation(places: int) -> None:
    num_ready, (seconds, cleared), (expected, drained) = places + 1, MEASURED[places], SIMULATED[places]
    predicted = mean_step_seconds(LOAD, COMPUTE, num_ready, STEPS)
    assert predicted == pytest.approx(expected, abs=0.006)
    assert predicted == pytest.approx(seconds, abs=0.07)
    waits = simulated_waits([LOAD] * STEPS, COMPUTE, num_ready)
    assert np.mean(waits) + COMPUTE == pytest.approx(predicted)
    assert int(hidden_steps(LOAD, COMPUTE, num_ready)) == drained == [wait > 0 for wait in waits].index(True) - 1
    assert abs(drained - cleared) <= 1


@pytest.mark.parametrize("num_ready", [1, 3, 9, 40])
def test_an_empty_queue_is_as_slow_as_the_loader(num_ready: int) -> None:
    waits = simulated_waits([LOAD] * 500, COMPUTE, num_ready)
    assert waits[-1] + COMPUTE == pytest.approx(LOAD)
    assert mean_step_seconds(LOAD, COMPUTE, num_ready, 100_000) == pytest.approx(LOAD, rel=1e-3)


def test_no_step_waits_for_a_fast_loader() -> None:
    assert hidden_steps(0.9, 1.0, 1) == math.inf
    assert max(simulated_waits([0.9] * 50, 1.0, 1)) < 1e-9
    assert mean_step_seconds(0.9, 1.0, 1, 50) == 1.0
    row = queue_table({1: [Drained(3, (0.0,) * 9, 0.5, 0.1)]}, compute=1.0).rows[0]
    assert row[2:5] == (9, 9, None) and row[5] == row[7] == 1.0


def test_a_deeper_queue_hides_late_batches() -> None:
    """With one place a step takes the longer of the two times: on average C + L exp(-C / L) for exponential times."""
    load = np.random.default_rng(1).exponential(0.8, 20_000).tolist()
    waits = [np.mean(simulated_waits(load, 1.0, depth)) for depth in (1, 2, 8, 64)]
    idle = [wait / (wait + 1) for wait in waits]
    assert idle == sorted(idle, reverse=True) and idle[-1] < 0.01
    assert idle[0] == pytest.approx(1 - 1 / (1 + 0.8 * math.exp(-1 / 0.8)), abs=0.01)


def test_measured_turns_agree_with_the_law() -> None:
    waits = {depth: tuple(simulated_waits([LOAD] * STEPS, COMPUTE, depth + 3)) for depth in (1, 2, 4, 24)}
    turns = {depth: [Drained(depth + 3, seconds, LOAD, LOAD)] * 2 for depth, seconds in waits.items()}
    table = queue_table(turns, compute=COMPUTE)
    for depth, row in zip(turns, table.rows, strict=True):
        name, ready, hidden, simulated, _, seconds, _, law, steady, for_ever = row
        assert (name, ready, hidden) == (str(depth), depth + 3, simulated)
        assert round(float(seconds or 0), 6) == round(float(law or 0), 6)
        assert for_ever == LOAD and (steady is None) == (depth == 24)
    assert [row[2] for row in table.rows] == [6, 7, 10, 30]
    assert "only postpones" in table.finding


def test_a_batch_that_is_read_but_not_decoded_counts_in_part() -> None:
    """It needs 0.5 s of 2 s: batches are ready at 0.5, 2.5, 4.5 s and needed at 3, 4, 5, ..."""
    waits = simulated_waits([2.0] * 20, 1.0, 4, unfinished_seconds=0.5)
    assert waits[:8] == [0, 0, 0, 0, 0, 0, 0.5, 1]
    row = queue_table({1: [Drained(3, tuple(waits), 2.0, 0.5)]}, compute=1.0).rows[0]
    assert row[2:5] == (6, 6, 6) and row[5] == pytest.approx(row[7])


@pytest.mark.slow
def test_a_real_loader_beside_the_law(tmp_path: Path) -> None:
    """The DataLoader keeps prefetch_factor batches, and the prefetcher's thread holds one more. There are fewer images
    than the steps need."""
    root = write_images(tmp_path / "images", num_classes=3, per_class=30)
    words = (f"data.root={root}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=6", "data.image_size=32")
    options: dict[str, Any] = {"prefetch_factors": [1, 2], "num_steps": 9, "load_seconds": 0.3}
    (table,) = run(small_request("queue", tmp_path, *words, **options))
    assert [row[:2] for row in table.rows] == [("1", 2), ("2", 3)]
    with pytest.raises(ConfigError, match="study=queue: load_over_compute"):
        run(small_request("queue", tmp_path, *words, load_over_compute=0.5))
