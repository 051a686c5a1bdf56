"""Two studies of the suites, small and on a CPU."""

from typing import Any

import pytest

from suites.studies.anatomy import GROUPS, measure, table_of
from suites.studies.queue import hidden_steps, mean_step_seconds
from suites.studies.streams import ADDED, WHOLE, images_per_second
from suites.studies.synthetic_step import SyntheticStep

TINY = ["data=demo", "model.name=resnet10t", "data.batch_size=4", "data.image_size=32", "trainer.accelerator=cpu"]
LOAD, COMPUTE, STEPS = 2.66, 1.0, 30
MEASURED = {1: (2.5, 0), 2: (2.4, 3), 4: (2.2, 6), 8: (1.9, 13)}
"""Published measurements: places of a queue -> mean seconds of 30 steps, number of the step that empties the queue. A
worker holds one batch more while the queue is full."""


def test_a_step_on_a_cpu_is_split_into_kinds_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suites.studies.anatomy.SIZES", {"cpu": (512,)})
    subject = SyntheticStep(TINY)
    rows: dict[Any, Any] = {row[0]: row[1:] for row in table_of(measure(subject, seconds=0.1, num_steps=1), "").rows}
    assert tuple(rows) == (*GROUPS, "whole step") and 0 < rows["whole step"][4] < 100, "MFU"
    assert sum(rows[group][1] for group in GROUPS) == pytest.approx(100)
    assert min(images_per_second(subject, 2, way, 0.01) for way in (ADDED, WHOLE)) > 0


@pytest.mark.parametrize("places", MEASURED)
def test_the_law_of_the_queue_agrees_with_measurements(places: int) -> None:
    seconds, cleared = MEASURED[places]
    assert mean_step_seconds(LOAD, COMPUTE, places + 1, STEPS) == pytest.approx(seconds, abs=0.07)
    assert abs(int(hidden_steps(LOAD, COMPUTE, places + 1)) - cleared) <= 1
