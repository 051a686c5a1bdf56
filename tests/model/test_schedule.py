"""Learning-rate factors against formulas written out, and against torch and timm."""

import math
from typing import Any

import pytest
from timm.scheduler import CosineLRScheduler
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR, StepLR

from imagenet_opt.model.schedule import cosine, cosine_by_epoch, linear, multistep, piecewise


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


def ffcv_rate(epoch: int, num_epochs: int) -> float:
    """The factor at the start of an epoch in FFCV's recipe: a triangle with its peak at epoch 2."""
    return epoch / 2 * (1 - 1e-4) + 1e-4 if epoch <= 2 else (num_epochs - epoch) / (num_epochs - 2)


@pytest.mark.parametrize("num_epochs", [16, 88])
def test_the_triangle_of_ffcv(num_epochs: int) -> None:
    """Linear within each epoch, between the factors of its start and its end."""
    per_epoch, points = 312, [[0, 1e-4], [2 / num_epochs, 1], [1, 0]]
    for step in range(0, num_epochs * per_epoch, 97):
        epoch, within = divmod(step, per_epoch)
        start, end = ffcv_rate(epoch, num_epochs), ffcv_rate(epoch + 1, num_epochs)
        factor = piecewise(step, num_steps=num_epochs * per_epoch, steps_per_epoch=per_epoch, points=points)
        assert factor == pytest.approx(start + (end - start) * within / per_epoch, abs=1e-12)


def by_epoch(num_epochs: int, **options: Any) -> list[float]:
    """Factors of each epoch, which must be those of all its steps."""
    run = {"num_steps": 7 * num_epochs, "steps_per_epoch": 7.0}
    factors = [cosine_by_epoch(step, **run, **options) for step in range(7 * num_epochs)]
    assert all(len(set(factors[i : i + 7])) == 1 for i in range(0, len(factors), 7))
    return factors[::7]


def optimizer() -> SGD:
    return SGD(nn.Linear(1, 1).parameters(), lr=1.0)


def test_the_staircase_of_nvidia() -> None:
    expected = [(epoch + 1) / 8 for epoch in range(8)]
    expected += [0.5 * (1 + math.cos(math.pi * (epoch - 8) / 82)) for epoch in range(8, 90)]
    assert by_epoch(90, warmup_epochs=8) == pytest.approx(expected, abs=1e-12)


def test_timms_cosine_begins_under_its_warmup() -> None:
    timm = CosineLRScheduler(optimizer(), t_initial=100, lr_min=1e-3, warmup_t=5, warmup_lr_init=1e-4)
    ours = by_epoch(100, warmup_epochs=5, warmup_factor=1e-4, final_factor=1e-3, overlap=True)
    assert ours == pytest.approx([timm._get_lr(epoch)[0] for epoch in range(100)], abs=1e-12)


def test_torchvisions_cosine_follows_its_warmup() -> None:
    sgd = optimizer()
    rise, fall = LinearLR(sgd, start_factor=0.01, total_iters=5), CosineAnnealingLR(sgd, T_max=595)
    schedule, rates = SequentialLR(sgd, [rise, fall], milestones=[5]), []
    for _ in range(600):
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    assert by_epoch(600, warmup_epochs=5, warmup_factor=0.01) == pytest.approx(rates, abs=1e-6)


def test_steps_of_a_third_each_are_torchs_steps_of_30_epochs() -> None:
    sgd = optimizer()
    schedule = StepLR(sgd, step_size=30, gamma=0.1)
    for epoch in range(90):
        assert multistep(11 * epoch + 5, num_steps=990, steps_per_epoch=11) == pytest.approx(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
