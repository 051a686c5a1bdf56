"""The time left against sums worked out by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_opt.callbacks.progress_bar import duration, seconds_left

EPOCHS = 4
BATCHES = 100


def trainer(**attributes: Any) -> Any:
    """Four epochs of 100 batches, a validation after each, no step done yet."""
    steps = {"estimated_stepping_batches": EPOCHS * BATCHES, "accumulate_grad_batches": 1, "global_step": 0}
    validations = {"enable_validation": True, "val_check_batch": BATCHES, "check_val_every_n_epoch": 1}
    return SimpleNamespace(**steps | validations | attributes)


@pytest.mark.parametrize(
    ("attributes", "batches", "validations"),
    [
        ({}, 400, 4),
        ({"global_step": 100}, 300, 4),  # the validation of the first epoch comes now
        ({"global_step": 101}, 299, 3),
        ({"global_step": 400}, 0, 1),
        ({"estimated_stepping_batches": 350, "global_step": 320}, 30, 0),  # trainer.max_steps ends inside an epoch
        ({"check_val_every_n_epoch": 2, "global_step": 150}, 250, 2),
        ({"val_check_batch": 25, "global_step": 350}, 50, 3),  # also the validation after batch 350
        ({"check_val_every_n_epoch": None, "val_check_batch": 150}, 400, 2),
        ({"val_check_batch": None}, 400, 0),  # an interval of time
        ({"accumulate_grad_batches": 4, "estimated_stepping_batches": 100, "global_step": 50}, 200, 3),
    ],
)
def test_batches_and_validations_that_are_left_take_their_time(
    attributes: dict[str, Any], batches: int, validations: int
) -> None:
    asked = trainer(**attributes)
    assert seconds_left(asked, batches_per_second=2.0, validation_seconds=None) == batches / 2
    assert seconds_left(asked, batches_per_second=2.0, validation_seconds=7.0) == batches / 2 + 7 * validations


def test_a_fit_without_end_or_rate_has_no_time_left() -> None:
    endless = trainer(estimated_stepping_batches=math.inf)
    for fit, rate in ((endless, 2.0), (trainer(), 0.0), (trainer(), math.nan)):
        assert seconds_left(fit, batches_per_second=rate, validation_seconds=1.0) is None


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0:00"), (32, "0:32"), (3599.4, "59:59"), (3599.6, "1:00:00"), (90061, "25:01:01")]
)
def test_durations_are_minutes_and_seconds_and_have_hours_from_one_on(seconds: float, words: str) -> None:
    assert duration(seconds) == words
