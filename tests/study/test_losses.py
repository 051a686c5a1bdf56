import math
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.study.losses import Parity, measure_losses, parity
from imagenet_opt.study.turn import RowResult, Worths
from tests.study.conftest import Processes
from tests.study.studies import Words, cache_of, steps_study

FUSED, MIXED, FREED = "optimizer.fused=true", "callbacks.mixing.mode='on'", "model.set_to_none=true"
STEPS: list[dict[str, Any]] = [
    {"name": "fused", "overrides": [FUSED]},
    {"name": "mixing", "overrides": [MIXED], "other_loss": "mixed labels"},
    {"name": "freed", "overrides": [FREED]},
]
SEEDS = [[2.0, 1.0], [2.3, 1.4], [2.0, 1.2]]
LEVELS = {FUSED: 0.15, MIXED: 5.0, FREED: 0.15, "seed=1": 0.1, "seed=2": 0.2}


def curve(words: Words) -> list[float]:
    """Each of two steps stays within the spread of seeds, 0.2, but not both together."""
    level = sum(LEVELS.get(word, 0.0) for word in words)
    return [2.0 + level, 1.0 + level]


@pytest.mark.slow
def test_each_loss_is_compared_with_the_loss_without_the_step(tmp_path: Path, processes: Processes) -> None:
    """The loss of the mixed row is far from the loss of the start, but `freed` is compared with the mixed row."""
    processes.curve = curve
    study = steps_study(tmp_path, STEPS, parity_steps=10)
    results = [RowResult(row, [processes.turn(())], None, Worths(), Worths()) for row in study.rows]
    same = Parity(pytest.approx(0.15), pytest.approx(0.2))  # type: ignore[arg-type]
    for _ in range(2):  # stored curves are not trained again
        losses = measure_losses(study, results, cache_of(study))
        assert losses == {"fused": same, "mixing": "mixed labels", "freed": same}
        assert len(processes.jobs) == 6, "three seeds of the start, and each row once"


@pytest.mark.parametrize(
    ("curve", "text"),
    [
        ([2.1, 1.1], "same: 0.100, seeds 0.354"),
        ([3.0, 2.0], "DIFFERS: 1.000, seeds 0.354"),
        ([2.0, math.nan], "the loss is not finite"),
    ],
)
def test_a_curve_agrees_if_it_is_nearer_than_the_seeds_are_to_each_other(curve: list[float], text: str) -> None:
    comparison = parity(curve, SEEDS[0], SEEDS)
    assert comparison.spread == pytest.approx(math.sqrt((0.3**2 + 0.4**2) / 2))
    assert (comparison.agrees, str(comparison)) == (text.startswith("same"), text)
