"""The comparison with timm: both trainers are told the same schedule, and the verdict follows its rule."""

from functools import partial

import numpy as np
import pytest
import torch
from timm.optim import create_optimizer_v2
from torch import nn

from imagenet_opt.model.schedule import cosine
from suites.learning.recipe import Learned, Recipe
from suites.learning.timm_run import scheduler_of
from suites.learning.verdict import difference, table, verdict


@pytest.mark.parametrize(("epochs", "steps_per_epoch"), [(2, 5), (8, 3)])
def test_timm_is_told_the_learning_rates_of_this_trainer(epochs: int, steps_per_epoch: int) -> None:
    recipe, num_steps = Recipe(epochs=epochs), epochs * steps_per_epoch
    optimizer = create_optimizer_v2(nn.Linear(1, 1), "sgd", lr=recipe.lr)
    scheduler = scheduler_of(optimizer, recipe, steps_per_epoch)
    rates = []
    for step in range(num_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step_update(step + 1)
    factor = partial(cosine, num_steps=num_steps, steps_per_epoch=steps_per_epoch, warmup_epochs=recipe.warmup)
    assert rates == pytest.approx([recipe.lr * factor(step) for step in range(num_steps)])


def test_the_interval_is_students_for_two_samples_of_equal_variance() -> None:
    ours, theirs = [77.2, 78.1, 77.4], [77.0, 77.9, 76.6]
    reach = 2.776445 * np.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / 2 * (1 / 3 + 1 / 3))  # t of 4 degrees
    middle = np.mean(ours) - np.mean(theirs)
    assert difference(ours, theirs) == pytest.approx((middle, middle - reach, middle + reach))


@pytest.mark.parametrize(
    ("shift", "spread", "said"),
    [
        (0.1, 0.3, "within the seed noise"),
        (-3.0, 0.3, "not within the seed noise"),
        (0.1, 3.0, "undecided: use more --seeds"),
        (3.0, 0.0, "not within the seed noise"),
    ],
)
def test_the_verdict_follows_the_rule(shift: float, spread: float, said: str) -> None:
    theirs = 75 + spread * np.array([-1.0, 0.0, 1.0])
    assert verdict(difference(theirs + shift, theirs)) == said


def test_one_seed_decides_nothing() -> None:
    text = table([Learned(70.0, 200.0)], [Learned(50.0, 100.0)])
    assert "| 0 | 70.00 | 50.00 | 200 | 100 | 2.00 |" in text
    assert "verdict: undecided" in text


def test_the_table_has_means_and_deviations_of_the_right_columns() -> None:
    ours = [Learned(70.0, 200.0), Learned(72.0, 200.0)]
    theirs = [Learned(71.0, 100.0), Learned(71.0, 100.0)]
    rows = table(ours, theirs).splitlines()
    assert rows[4] == "| mean | 71.00 | 71.00 | 200 | 100 | 2.00 |"
    deviation = float(torch.tensor([70.0, 72.0]).std())
    assert rows[5] == f"| standard deviation | {deviation:.2f} | 0.00 | | | |"
