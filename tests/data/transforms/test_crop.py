"""Crop boxes against those of torchvision."""

import math

import numpy as np
import pytest
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.functional import pil_to_tensor

from imagenet_opt.data.order import SampleIds
from imagenet_opt.data.transforms.crop import RANDOM_CROP_DRAWS, CropBoxes, eval_crops, random_crops
from imagenet_opt.data.transforms.resize import resize
from tests.data.conftest import picture, torchvision_crop


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.9, 1.0)])
def test_random_crops_are_those_of_torchvision_for_the_same_draws(scale: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    heights, widths = rng.integers(1, 600, 300), rng.integers(1, 600, 300)
    heights[:4], widths[:4] = [1, 1000, 1, 2], [1000, 1, 1, 700]
    draws = rng.random((300, RANDOM_CROP_DRAWS))
    crops = random_crops(heights, widths, draws, scale=scale)
    for row, box in enumerate(zip(*(side.tolist() for side in crops[:4]), strict=True)):
        assert box == torchvision_crop(int(heights[row]), int(widths[row]), draws[row], scale), row
        assert 0 <= box[0] <= heights[row] - box[2]
        assert 0 <= box[1] <= widths[row] - box[3]


def centred(height: int, width: int, size: int, crop_ratio: float) -> CropBoxes:
    draw = SampleIds(np.zeros(1, np.int64), np.zeros(1, np.int64), 1)
    return eval_crops(draw, np.array([height]), np.array([width]), size, crop_ratio=crop_ratio)[0]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("size", "crop_ratio"), [(224, 0.875), (288, 0.95), (32, 1.0)])
def test_centred_crops_are_those_of_resize_and_center_crop(size: int, crop_ratio: float, interpolation: str) -> None:
    """For whole levels, as a worker makes them, and for floats, as a device does."""
    mode, shorter = InterpolationMode(interpolation), math.floor(size / crop_ratio)
    usual = v2.Compose([v2.Resize(shorter, interpolation=mode, antialias=True), v2.CenterCrop(size)])
    for height, width in ((333, 500), (500, 375), (257, 256), (71, 400), (40, 90), (1, 1)):
        image = picture(height, width)
        crops = centred(height, width, size, crop_ratio)
        (top, left, h, w), window = (int(side[0]) for side in crops[:4]), crops.windows[0].tolist()
        pixels = pil_to_tensor(image)[:, top : top + h, left : left + w]
        whole_levels = resize(pixels, size, False, interpolation, window).float()
        assert (whole_levels - pil_to_tensor(usual(image))).abs().mean() < 0.01, (height, width)
        known = usual(pil_to_tensor(image).float()).clamp(0, 255)
        assert (resize(pixels.float(), size, False, interpolation, window) - known).abs().max() < 0.01, (height, width)
