"""Learning-rate factors against formulas written out."""

import math

import pytest

from imagenet_opt.model.schedule import cosine, linear


def test_linear_warms_up_and_falls_in_straight_lines() -> None:
    factors = [linear(step, num_steps=12, steps_per_epoch=2, warmup_epochs=2) for step in range(13)]
    assert factors[:4] == pytest.approx([1 / 5, 2 / 5, 3 / 5, 4 / 5])
    assert factors[4:] == pytest.approx([1 - k / 8 for k in range(9)])


def test_cosine_falls_to_its_final_factor() -> None:
    factors = [cosine(step, num_steps=10, steps_per_epoch=5, final_factor=0.1) for step in range(11)]
    assert factors == pytest.approx([0.1 + 0.9 * (1 + math.cos(math.pi * step / 10)) / 2 for step in range(11)])


def test_a_short_trial_of_a_long_recipe_still_decays() -> None:
    factors = [cosine(step, num_steps=20, steps_per_epoch=5000, warmup_epochs=5) for step in range(20)]
    assert max(factors) == factors[10] == 1.0
    assert factors[-1] < 0.05
