"""Random erasing against timm's."""

import random

import numpy as np
import pytest
import torch
from timm.data.random_erasing import RandomErasing as Timms

from imagenet_opt.data.transforms.augment import RandomErasing
from imagenet_opt.data.transforms.augment_ops import erase


def boxes(num: int, size: int, **options) -> np.ndarray:
    policy = RandomErasing(**options)
    return policy.boxes(np.random.default_rng(0).random((num, policy.num_draws)), size)


def timms_boxes(num: int, size: int, probability: float) -> np.ndarray:
    """top, left, height, width of what timm erases."""
    random.seed(0)
    timms, actual = Timms(probability, device="cpu"), []
    for _ in range(num):
        rows, columns = torch.nonzero(timms(torch.ones(1, size, size))[0] == 0, as_tuple=True)
        if len(rows):
            top, left = int(rows.min()), int(columns.min())
            actual.append((top, left, int(rows.max()) - top + 1, int(columns.max()) - left + 1))
    return np.array(actual)


def test_boxes_are_distributed_as_timms() -> None:
    expected, actual = timms_boxes(4_000, 64, 0.25), boxes(40_000, 64, probability=0.25)
    assert len(expected) / 4_000 == pytest.approx(0.25, abs=0.03)
    assert len(actual) / 40_000 == pytest.approx(0.25, abs=0.01)
    assert np.array_equal(actual[:, 0], np.unique(actual[:, 0]))
    shares = [0.05, 0.25, 0.5, 0.75, 0.95]
    for ours, theirs in zip(actual[:, 1:5].T, expected.T, strict=True):
        assert np.quantile(ours, shares) == pytest.approx(np.quantile(theirs, shares), abs=3)
    assert (actual[:, 1] + actual[:, 3] <= 64).all() and (actual[:, 2] + actual[:, 4] <= 64).all()
    assert (actual[:, 1] + actual[:, 3] == 64).any()  # the last row can be erased


def test_a_box_becomes_the_mean_colour() -> None:
    images = torch.ones(4, 3, 40, 48, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    erase(images, np.array([[1, 3, 5, 20, 30], [2, 0, 0, 20, 30]]))
    inside = torch.zeros_like(images, dtype=torch.bool)
    inside[1, :, 3:23, 5:35] = inside[2, :, :20, :30] = True
    assert (images[inside] == 0).all() and (images[~inside] == 1).all()
