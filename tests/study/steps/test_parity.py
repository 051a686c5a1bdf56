import math

import pytest

from imagenet_opt.study.steps.parity import parity

SEEDS = [[2.0, 1.0], [2.3, 1.4], [2.0, 1.2]]


def test_a_curve_nearer_than_the_seeds_are_to_each_other_agrees() -> None:
    found = parity([7.1, 1.1], [7.0, 1.0], SEEDS)
    assert found.distance == pytest.approx(0.1)
    assert found.spread == pytest.approx(math.sqrt((0.3**2 + 0.4**2) / 2))
    assert found.agrees and str(found) == "same: 0.100, seeds 0.354"


def test_a_curve_farther_away_is_told() -> None:
    assert str(parity([3.0, 2.0], SEEDS[0], SEEDS)) == "DIFFERS: 1.000, seeds 0.354"


def test_a_loss_that_is_not_finite_never_agrees() -> None:
    found = parity([2.0, math.nan], SEEDS[0], SEEDS)
    assert not found.agrees and str(found) == "the loss is not finite"


def test_one_seed_has_no_spread() -> None:
    with pytest.raises(ValueError, match="1 seeds have no spread"):
        parity([1.0], [1.0], SEEDS[:1])
