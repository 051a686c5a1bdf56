"""The law of the queue beside published measurements and a real loader."""

import math
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.study.kinds.queue import hidden_steps, mean_step_seconds
from tests.conftest import write_images
from tests.study.studies import table_of

LOAD, COMPUTE, STEPS = 2.66, 1.0, 30
MEASURED = {1: (2.5, 0), 2: (2.4, 3), 4: (2.2, 6), 8: (1.9, 13)}
"""Published measurements: places of a queue -> mean seconds of 30 steps, number of the step that empties the queue. A
worker holds one batch more while the queue is full."""


@pytest.mark.parametrize("places", MEASURED)
def test_the_law_agrees_with_measurements(places: int) -> None:
    seconds, cleared = MEASURED[places]
    assert mean_step_seconds(LOAD, COMPUTE, places + 1, STEPS) == pytest.approx(seconds, abs=0.07)
    assert abs(int(hidden_steps(LOAD, COMPUTE, places + 1)) - cleared) <= 1


def test_no_step_waits_for_a_fast_loader_and_an_empty_queue_is_as_slow_as_the_loader() -> None:
    assert hidden_steps(0.9, 1.0, 1) == math.inf and mean_step_seconds(0.9, 1.0, 1, 50) == 1.0
    assert mean_step_seconds(LOAD, COMPUTE, 40, 100_000) == pytest.approx(LOAD, rel=1e-3)


@pytest.mark.slow
def test_a_real_loader_beside_the_law(tmp_path: Path) -> None:
    """The DataLoader keeps prefetch_factor batches, the prefetcher's thread holds one more, and the worker another one.
    There are fewer images than the steps need."""
    root = write_images(tmp_path / "images", num_classes=3, per_class=30)
    words = (f"data.root={root}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=6", "data.image_size=32")
    options: dict[str, Any] = {"prefetch_factors": [2], "num_steps": 6, "load_seconds": 0.1, "repeats": 1}
    table = table_of("queue", tmp_path, *words, **options)
    assert table.rows[0][0] == "2" and table.rows[0][table.headings.index("ready at first")] == 4
