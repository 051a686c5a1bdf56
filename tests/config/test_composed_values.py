"""Values of a configuration that follow other values: the length of a run, timm's weights, the device."""

from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_opt.config.length import settle_length
from imagenet_opt.config.speed import settle_acceleration
from tests import conftest
from tests.config.configs import composed

IMAGENET = 1_281_167
OF_IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], "bilinear", 0.875)
VIT = "vit_base_patch16_224.augreg2_in21k_ft_in1k"


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (["trainer.max_epochs=-1", "trainer.max_steps=10"], ("off", 0.0, 0.0)),
        (["trainer.max_epochs=20"], ("on", 0.0, 0.0)),
        (["trainer.max_epochs=200"], ("on", 1.0, 0.1)),
        (["trainer.max_epochs=200", "trainer.max_steps=81"], ("on", 0.0, 0.0)),
    ],
)
def test_longer_runs_are_regularised_more(length: list[str], expected: tuple[Any, ...], tmp_path: Path) -> None:
    config = composed(tmp_path, "experiment=imagenette", *length)
    assert settle_length(config, num_batches=4) == 4
    mixing = config.callbacks.mixing
    assert (mixing.mode, mixing.cutmix_alpha, config.model.drop_path_rate) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([f"model.name={VIT}"], OF_IMAGENET),
        ([f"model.name={VIT}", "model.pretrained=true"], ([0.5] * 3, [0.5] * 3, "bicubic", 0.9)),
        ([f"model.name={VIT}", "model.pretrained=true", "data.mean=[0,0,0]"], ([0] * 3, [0.5] * 3, "bicubic", 0.9)),
        (["model.name=no_such_net", "model.pretrained=true"], OF_IMAGENET),  # build_network refuses the name
    ],
)
def test_images_follow_timms_weights(words: list[str], expected: tuple[Any, ...], tmp_path: Path) -> None:
    data = composed(tmp_path, "data=demo", *words).data
    assert (data.mean, data.std, data.interpolation, data.val_crop_ratio) == expected


@pytest.mark.parametrize(
    ("device", "num_train", "overrides", "compiles", "cuda_graph"),
    [
        ("cuda", IMAGENET, ("trainer.max_epochs=1",), True, "auto"),
        ("cpu", IMAGENET, (), False, False),
        ("cuda", IMAGENET, ("trainer.max_steps=400",), False, "auto"),
        ("cuda", IMAGENET, ("trainer.max_steps=1000", "data.batch_size=256", "trainer.devices=4"), True, False),
        ("cuda", 1000, ("trainer.max_epochs=-1",), True, "auto"),
        ("cuda", IMAGENET, ("callbacks.acceleration.compile_mode=reduce-overhead",), True, False),
        ("cuda", IMAGENET, ("experiment=baseline",), False, False),
    ],
)
def test_a_measurement_compiles_if_a_whole_training_would(
    device: str, num_train: int, overrides: tuple[str, ...], compiles: bool, cuda_graph: object
) -> None:
    config = conftest.composed(*overrides)
    settle_acceleration(config, num_train, torch.device(device))
    acceleration = config.callbacks.acceleration
    assert (acceleration.compile, acceleration.cuda_graph) == (compiles, cuda_graph)
