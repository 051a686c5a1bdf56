"""Learning-rate factors against formulas written out; tests/plan compares those of recipes with torch and timm."""

import math

import pytest

from imagenet_opt.model.schedule import cosine, cosine_by_epoch, linear, multistep


def test_linear_warms_up_and_falls_in_straight_lines_to_its_final_factor() -> None:
    factors = [linear(step, num_steps=12, steps_per_epoch=2, warmup_epochs=2) for step in range(13)]
    assert factors[:4] == pytest.approx([1 / 5, 2 / 5, 3 / 5, 4 / 5])
    assert factors[4:] == pytest.approx([1 - k / 8 for k in range(9)])
    factors = [linear(step, num_steps=4, steps_per_epoch=4, warmup_epochs=0, final_factor=0.2) for step in range(6)]
    assert factors == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_warms_up_and_falls_to_its_final_factor() -> None:
    factors = [cosine(step, num_steps=8, steps_per_epoch=4, warmup_epochs=1) for step in range(9)]
    half = 0.5**0.5 / 2
    assert factors == pytest.approx([1 / 5, 2 / 5, 3 / 5, 4 / 5, 1.0, 0.5 + half, 0.5, 0.5 - half, 0.0])
    factors = [cosine(step, num_steps=10, steps_per_epoch=5, warmup_epochs=0, final_factor=0.1) for step in range(11)]
    assert factors == pytest.approx([0.1 + 0.9 * (1 + math.cos(math.pi * step / 10)) / 2 for step in range(11)])


def test_a_short_trial_of_a_long_recipe_still_decays() -> None:
    """Warmup of 25,000 steps takes half of the four that there are."""
    factors = [linear(step, num_steps=4, steps_per_epoch=5000, warmup_epochs=5) for step in range(5)]
    assert factors == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5, 0.0])


def test_a_staircase_has_one_factor_in_all_steps_of_an_epoch() -> None:
    """What it is in each epoch, the plans of the recipes show."""
    for schedule in (cosine_by_epoch, multistep):
        factors = [schedule(step, num_steps=70, steps_per_epoch=7.0) for step in range(70)]
        assert all(len(set(factors[i : i + 7])) == 1 for i in range(0, 70, 7)) and len(set(factors)) > 2
