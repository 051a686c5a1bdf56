"""With timm's weights, images are made as these weights expect them."""

from pathlib import Path
from typing import Any

import pytest

from tests.config.configs import composed

OF_IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], "bilinear", 0.875)
VIT, A1 = "vit_base_patch16_224.augreg2_in21k_ft_in1k", "resnet50.a1_in1k"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([f"model.name={VIT}"], OF_IMAGENET),
        ([f"model.name={VIT}", "model.pretrained=true"], ([0.5] * 3, [0.5] * 3, "bicubic", 0.9)),
        ([f"model.name={A1}", "model.pretrained=true"], (*OF_IMAGENET[:2], "bicubic", 0.95)),
        ([f"model.name={A1}", "model.pretrained=true", "data.interpolation=area"], (*OF_IMAGENET[:2], "area", 0.95)),
        (["model.name=no_such_net", "model.pretrained=true"], OF_IMAGENET),  # build_network refuses the name
    ],
)
def test_images_follow_the_weights(words: list[str], expected: tuple[Any, ...], tmp_path: Path) -> None:
    data = composed(tmp_path, "data=demo", *words).data
    assert (data.mean, data.std, data.interpolation, data.val_crop_ratio) == expected
