from collections.abc import Callable

import pytest

from imagenet_opt.doctor.environment.setup import Setup
from imagenet_opt.doctor.environment.tensor_cores import check_channels_last, check_multiples


@pytest.mark.parametrize(
    ("fields", "fired"),
    [
        ({}, False),
        ({"batch_size": 250}, True),
        ({"num_classes": 1001}, True),
        ({"widths": (64, 90)}, True),
        ({"batch_size": 252, "precision": "32-true"}, False),  # TF32 wants fours
        ({"batch_size": 250, "precision": "32-true"}, True),
        ({"batch_size": 250, "precision": "64-true"}, None),
        ({"batch_size": 250, "cuda_index": None}, None),
    ],
)
def test_sizes_are_held_against_what_the_precision_wants(
    setup: Callable[..., Setup], fields: dict[str, object], fired: bool | None
) -> None:
    assert check_multiples(setup(**fields)).fired is fired


def test_the_batch_size_is_rounded_up_and_others_are_only_named(setup: Callable[..., Setup]) -> None:
    assert check_multiples(setup(batch_size=250)).overrides == ("data.batch_size=256",)
    found = check_multiples(setup(num_classes=37))
    assert "classes 37" in found.evidence and not found.overrides


def test_what_an_a100_likes_better_is_said_without_firing(setup: Callable[..., Setup]) -> None:
    found = check_multiples(setup(batch_size=200))
    assert found.fired is False and "not of 64" in found.evidence and "200, 1000" in found.evidence


def test_channels_last_matters_on_a_gpu(setup: Callable[..., Setup]) -> None:
    found = check_channels_last(setup(channels_last=False))
    assert found.fired and found.overrides == ("callbacks.acceleration.channels_last=true",)
    assert check_channels_last(setup()).fired is False
    assert check_channels_last(setup(channels_last=False, cuda_index=None)).fired is None
