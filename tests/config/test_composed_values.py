"""Values of a configuration that follow other values: the length of a run, timm's weights, the device."""

from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.config.length import settle_length
from tests.config.configs import composed

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
