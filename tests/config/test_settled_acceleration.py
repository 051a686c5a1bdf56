"""A measurement compiles if a whole training of the same configuration would."""

import pytest
import torch

from imagenet_opt.config.settled_acceleration import settle_acceleration
from tests.conftest import composed

IMAGENET = 1_281_167


@pytest.mark.parametrize(
    ("device", "num_train", "overrides", "compiles", "cuda_graph"),
    [
        ("cuda", IMAGENET, ("trainer.max_epochs=1",), True, "auto"),
        ("cpu", IMAGENET, (), False, False),
        ("cuda", IMAGENET, ("callbacks.acceleration.compile=false",), False, "auto"),
        ("cuda", IMAGENET, ("trainer.max_steps=400",), False, "auto"),
        ("cuda", IMAGENET, ("trainer.max_steps=4000", "data.global_batch_size=1024"), True, "auto"),
        ("cuda", IMAGENET, ("trainer.max_steps=1000", "data.batch_size=256", "trainer.devices=4"), True, False),
        ("cuda", 1000, ("trainer.max_epochs=-1",), True, "auto"),
        ("cuda", 500, ("experiment=demo",), False, "auto"),
        ("cuda", IMAGENET, ("callbacks.acceleration.compile_mode=reduce-overhead",), True, False),
        ("cuda", IMAGENET, ("experiment=baseline",), False, False),
    ],
)
def test_auto_is_settled_as_in_a_training(
    device: str, num_train: int, overrides: tuple[str, ...], compiles: bool, cuda_graph: object
) -> None:
    config = composed(*overrides)
    settle_acceleration(config, num_train, torch.device(device))
    acceleration = config.callbacks.acceleration
    assert (acceleration.compile, acceleration.cuda_graph) == (compiles, cuda_graph)
