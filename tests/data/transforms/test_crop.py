"""Crops against those of torchvision."""

from pathlib import Path

import numpy as np
import pytest
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.functional import pil_to_tensor

from imagenet_opt.data.transforms.crop import random_crops
from tests.data.conftest import MakeLoader, by_index, encoded, folder_of, picture, torchvision_crop


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.9, 1.0)])
def test_random_crops_are_those_of_torchvision_for_the_same_draws(scale: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    heights, widths = rng.integers(1, 600, 300), rng.integers(1, 600, 300)
    heights[:4], widths[:4] = [1, 1000, 1, 2], [1000, 1, 1, 700]
    draws = rng.random((300, 40))  # four for each of ten tries
    crops = random_crops(heights, widths, draws, scale=scale)
    for row, box in enumerate(zip(*(side.tolist() for side in crops[:4]), strict=True)):
        assert box == torchvision_crop(int(heights[row]), int(widths[row]), draws[row], scale), row
        assert 0 <= box[0] <= heights[row] - box[2]
        assert 0 <= box[1] <= widths[row] - box[3]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "area"])
@pytest.mark.parametrize(("size", "crop_ratio"), [(224, 0.875), (288, 0.95), (32, 1.0)])
def test_centred_crops_are_those_of_resize_and_center_crop(
    tmp_path: Path, loader: MakeLoader, size: int, crop_ratio: float, interpolation: str
) -> None:
    """Of whole levels, as a worker makes them, and of floats, as a device does. torchvision has no area."""
    pictures = [picture(*sides) for sides in ((333, 500), (500, 375), (257, 256), (71, 400), (40, 90), (1, 1))]
    root = folder_of(tmp_path / "data", *(encoded(each, "PNG") for each in pictures))
    options = {"training": False, "image_size": size, "val_crop_ratio": crop_ratio, "val_interpolation": interpolation}
    options |= {"mean": (0, 0, 0), "std": (1 / 255,) * 3}
    of_worker, of_device = (by_index(list(loader(root, resize_on=place, **options))) for place in ("worker", "device"))
    for i, each in enumerate(pictures):
        if interpolation == "area":
            assert (of_worker[i] - of_device[i]).abs().max() <= 0.51, each.size
            continue
        mode, shorter = InterpolationMode(interpolation), int(size / crop_ratio)
        usual = v2.Compose([v2.Resize(shorter, interpolation=mode, antialias=True), v2.CenterCrop(size)])
        assert (of_worker[i] - pil_to_tensor(usual(each))).abs().mean() < 0.01, each.size
        assert (of_device[i] - usual(pil_to_tensor(each).float()).clamp(0, 255)).abs().max() < 0.01, each.size
