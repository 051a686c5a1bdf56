"""Checks of the keys under data."""

import pytest

from imagenet_opt.errors import ConfigError
from tests.data.conftest import loading


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": None}, r"data\.seed=None must be a whole number of at least 0"),
        ({"batch_size": 0}, r"data\.batch_size=0 must be a whole number of at least 1"),
        ({"num_workers": -1}, r"data\.num_workers=-1 .*at least 0, or auto"),
        ({"num_workers": None}, r"data\.num_workers=None .*, or auto"),
        ({"reads_in_flight": 0}, r"data\.reads_in_flight=0"),
        ({"shuffle": "blocks"}, r"data\.shuffle=blocks must be one of global, block"),
        ({"resize_on": "gpu"}, r"data\.resize_on=gpu must be one of auto, device, worker"),
        ({"on_bad_sample": "ignore"}, r"data\.on_bad_sample=ignore must be one of skip, raise"),
        ({"max_bad_fraction": -0.1}, r"data\.max_bad_fraction=-0\.1"),
        ({"read_timeout": "long"}, r"data\.read_timeout=long must be a number"),
        ({"cache_gb": "all"}, r"data\.cache_gb=all must be a number of at least 0, or null"),
        ({"cache_gb": -1}, r"data\.cache_gb=-1 must be a number of at least 0, or null"),
        ({"crop_scale": (0.5, 0.1)}, r"data\.crop_scale"),
        ({"val_crop_ratio": 1.5}, r"data\.val_crop_ratio=1\.5"),
        ({"max_crop_pixels": 0}, r"data\.max_crop_pixels=0"),
        ({"max_pixels": 1e8}, r"data\.max_pixels=100000000\.0 must be a whole number"),
        ({"region_decode": "off"}, r"data\.region_decode=off must be true or false"),
        ({"augment": "trivialaugment", "image_size": 2}, r"image_size=2 is smaller than the 3 .*data\.augment=null"),
        ({"repeated_augmentation": 0}, r"data\.repeated_augmentation=0 must be a whole number of at least 1"),
        ({"repeated_augmentation": 3, "shuffle": "block"}, r"does not work with data\.shuffle=block; set"),
        ({"repeated_augmentation": 3, "samples_per_epoch": 9}, r"does not work with data\.samples_per_epoch; set"),
        ({"exif_rotation": 1}, r"data\.exif_rotation=1 must be true or false"),
        ({"augment": "randm7"}, r"data\.augment=randm7 must be null, trivialaugment"),
        ({"random_shift": 1.5}, r"data\.random_shift=1\.5 must be a whole number of at least 0"),
        ({"random_shift": 32, "image_size": 32}, r"data\.random_shift=32 moves images of 32 pixels"),
        ({"random_erasing": 1.5}, r"data\.random_erasing=1\.5 must be a probability"),
        ({"val_interpolation": "box"}, r"val_interpolation=box must be null or one of bilinear, bicubic, area"),
        ({"std": (0.2, 0.2, 0)}, r"data\.std=\(0\.2, 0\.2, 0\) must be three numbers above 0, for red"),
        ({"max_mb_per_second": 0}, r"data\.max_mb_per_second=0 must be a number above 0, or null"),
    ],
)
def test_an_error_names_the_key(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loading(**options)


def test_auto_and_negative_means_are_valid() -> None:
    assert loading(num_workers="auto", prefetch_factor="auto", reads_in_flight="auto").num_workers == "auto"
    assert loading(mean=[-0.5, 0, 1]).mean == (-0.5, 0, 1)
