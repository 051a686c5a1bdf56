"""Checks of the keys under data."""

import pytest

from imagenet_opt.errors import ConfigError
from tests.data.conftest import loading


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": None}, r"data\.seed=None must be a valid integer"),
        ({"batch_size": 0}, r"data\.batch_size=0 must be greater than 0"),
        ({"batch_size": "auto"}, r"data\.batch_size=auto must .*; auto is for train\.py"),
        ({"batch_size": True}, r"data\.batch_size=True must be a valid integer"),
        (
            {"random_shift": 64, "image_size": 64},
            r"data\.random_shift=64 moves images of 64 pixels \(data\.image_size\)",
        ),
        ({"mean": (float("nan"), 0, 0)}, r"data\.mean=\(nan, 0, 0\) must be a finite number"),
        ({"num_workers": -1}, r"data\.num_workers=-1 must be .* 0 or 'auto'"),
        ({"shuffle": "blocks"}, r"data\.shuffle=blocks must be 'global' or 'block'"),
        ({"max_bad_fraction": -0.1}, r"data\.max_bad_fraction=-0\.1 must be greater than or equal to 0"),
        ({"read_timeout": "long"}, r"data\.read_timeout=long must be a valid number"),
        ({"read_timeout": float("inf")}, r"data\.read_timeout=inf must be a finite number"),
        ({"cache_gb": -1}, r"data\.cache_gb=-1 must be greater than or equal to 0"),
        ({"crop_scale": (0.5, 0.1)}, r"data\.crop_scale=\(0\.5, 0\.1\) must begin with the smaller"),
        ({"val_crop_ratio": 1.5}, r"data\.val_crop_ratio=1\.5 must be less than or equal to 1"),
        ({"region_decode": "perhaps"}, r"data\.region_decode=perhaps must be a valid boolean"),
        ({"repeated_augmentation": 3, "shuffle": "block"}, r"does not work with data\.shuffle=block; set"),
        ({"repeated_augmentation": 3, "samples_per_epoch": 9}, r"does not work with data\.samples_per_epoch; set"),
        ({"augment": "randm7"}, r"data\.augment=randm7 must be null, trivialaugment"),
        ({"std": (0.2, 0.2, 0)}, r"data\.std=\(0\.2, 0\.2, 0\) must be greater than 0"),
    ],
)
def test_an_error_names_the_key(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loading(**options)


def test_auto_and_lists_are_valid() -> None:
    assert loading(num_workers="auto", prefetch_factor="auto", reads_in_flight="auto").num_workers == "auto"
    assert loading(mean=[-0.5, 0, 1]).mean == (-0.5, 0, 1)
