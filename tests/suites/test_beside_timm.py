"""The comparison with timm: both trainers are told the same schedule."""

from functools import partial

import pytest
from timm.optim import create_optimizer_v2
from torch import nn

from imagenet_opt.model.schedule import cosine
from suites.learning.recipe import Recipe
from suites.learning.timm_run import scheduler_of


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
