"""Crop boxes against those of torchvision."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from imagenet_opt.data.transforms.crop import RANDOM_CROP_DRAWS, center_crops, random_crops
from tests.data.conftest import torchvision_crop


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.9, 1.0)])
def test_random_crops_are_those_of_torchvision_for_the_same_draws(scale: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    heights, widths = rng.integers(1, 600, 300), rng.integers(1, 600, 300)
    heights[:4], widths[:4] = [1, 1000, 1, 2], [1000, 1, 1, 700]
    draws = rng.random((300, RANDOM_CROP_DRAWS))
    crops = random_crops(heights, widths, draws, scale=scale)
    for row, box in enumerate(zip(*(side.tolist() for side in crops), strict=True)):
        assert box == torchvision_crop(int(heights[row]), int(widths[row]), draws[row], scale), row
        assert 0 <= box[0] <= heights[row] - box[2]
        assert 0 <= box[1] <= widths[row] - box[3]


@pytest.mark.parametrize(("height", "width"), [(320, 256), (256, 512), (500, 375)])
def test_centred_crops_are_those_of_resize_and_center_crop(height: int, width: int) -> None:
    """The value of a pixel in a ramp is its position in the source."""
    top, left, h, w = (int(side[0]) for side in center_crops(np.array([height]), np.array([width]), crop_ratio=0.875))
    rows = torch.arange(height, dtype=torch.float32)[:, None].expand(height, width)
    columns = torch.arange(width, dtype=torch.float32).expand(height, width)
    ramp = torch.stack([rows, columns])
    usual = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])(ramp)
    ours = v2.functional.resized_crop(ramp, top, left, h, w, size=[224, 224], antialias=True)
    assert (usual - ours).abs().max() < max(height, width) / 256 + 0.5


def test_one_pixel_is_an_image() -> None:
    assert [int(side[0]) for side in center_crops(np.array([1]), np.array([1]), crop_ratio=0.875)] == [0, 0, 1, 1]
