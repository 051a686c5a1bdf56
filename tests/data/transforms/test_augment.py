"""Draws of policies, against timm's RandAugment and RandomErasing, and torchvision's TrivialAugmentWide."""

import random

import numpy as np
import pytest
import torch
from timm.data import auto_augment
from timm.data.random_erasing import RandomErasing as Timms
from torchvision.transforms import autoaugment

from imagenet_opt.data.transforms.augment import RandAugment, RandomErasing, TrivialAugment, parse_policy
from imagenet_opt.data.transforms.augment_ops import Layer, Operation, erase

SIZE = 224
A2 = "rand-m7-mstd0.5-inc1"
TIMM_NAMES = {name.title().replace("_", ""): Operation[name] for name in Operation.__members__} | {
    "AutoContrast": Operation.AUTOCONTRAST, "TranslateXRel": Operation.TRANSLATE_X,
    "TranslateYRel": Operation.TRANSLATE_Y,
}  # fmt: skip
MOVED_BY_PIXELS = (Operation.TRANSLATE_X, Operation.TRANSLATE_Y)


def drawn(policy: RandAugment | TrivialAugment, num: int = 200_000, seed: int = 0) -> list[Layer]:
    return policy.layers(np.random.default_rng(seed).random((num, policy.num_draws)), SIZE)


def operation_of(timm_name: str) -> Operation:
    return TIMM_NAMES[timm_name.removesuffix("Increasing")]


def arguments_of(layer: Layer, operation: Operation) -> np.ndarray:
    return layer.arguments[layer.operations == operation]


@pytest.mark.parametrize("increasing", [0, 1])
@pytest.mark.parametrize("magnitude", [0, 7, 10])
def test_magnitudes_are_timms(magnitude: int, increasing: int) -> None:
    (layer,) = drawn(parse_policy(f"rand-m{magnitude}-n1-p1-inc{increasing}"), 2_000)
    names = auto_augment._RAND_INCREASING_TRANSFORMS if increasing else auto_augment._RAND_TRANSFORMS
    assert {operation_of(name) for name in names} == set(layer.operations) == set(RandAugment.OPERATIONS)
    for name in names:
        actual = sorted(set(arguments_of(layer, operation_of(name)).tolist()))
        if (argument := auto_augment.LEVEL_TO_ARG[name]) is None:
            assert actual == [0.0]
            continue
        scale = SIZE if operation_of(name) in MOVED_BY_PIXELS else 1
        expected = sorted({argument(magnitude, {})[0] * scale for _ in range(50)})  # with both signs
        assert actual == pytest.approx(expected), name


@pytest.mark.parametrize("text", [A2, "rand-m8-mstd101-mmax20", "rand-m4-mstdinf"])
def test_noise_is_distributed_as_timms(text: str) -> None:
    """Quantiles of the rotation, whose size is 3 degrees times the magnitude: normal, or above 100 uniform from 0."""
    (layer, _) = drawn(parse_policy(text))
    actual, rng = np.abs(arguments_of(layer, Operation.ROTATE)) / 3, np.random.default_rng(1)
    normal, uniform = np.clip(rng.normal(7, 0.5, 20_000), 0, 10), rng.random(20_000)
    expected = normal if text == A2 else uniform * (8 if "m8" in text else 4)
    shares = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]
    assert np.quantile(actual, shares) == pytest.approx(np.quantile(expected, shares), abs=0.2)


def test_two_operations_an_image_each_with_half_probability() -> None:
    first, second = drawn(parse_policy(A2))
    for layer in (first, second):
        shares = np.bincount(layer.operations, minlength=16) / len(layer.operations)
        assert shares[0] == pytest.approx(0.5, abs=0.005)
        assert shares[1:] == pytest.approx(np.full(15, 0.5 / 15), abs=0.002)
        signs = np.sign(arguments_of(layer, Operation.SHEAR_X))
        assert abs(signs.mean()) < 0.05
    same = (first.operations == second.operations) & (first.operations > 0)
    assert same.mean() == pytest.approx(0.25 / 15, abs=0.002)  # independent, with replacement as timm's
    assert first.fill == tuple(round(255 * mean) for mean in (0.485, 0.456, 0.406))


def test_trivial_augment_is_torchvisions() -> None:
    (layer,) = drawn(TrivialAugment())
    space = autoaugment.TrivialAugmentWide()._augmentation_space(31)
    shares = np.bincount(layer.operations, minlength=16) / len(layer.operations)
    named = {Operation.NOTHING if name == "Identity" else operation_of(name): name for name in space}
    for operation in Operation:
        assert shares[operation] == pytest.approx(1 / 14 if operation in named else 0, abs=0.003)
    for operation, name in named.items():
        magnitudes, signed = space[name]
        values = magnitudes.double().reshape(-1).numpy()
        values = np.union1d(values, -values) if signed else values
        values = values + 1 if name in ("Brightness", "Color", "Contrast", "Sharpness") else values
        # torch's 16 is 15.999999
        values = np.trunc(values + 1e-5 * np.sign(values)) if operation in MOVED_BY_PIXELS else values
        actual, counts = np.unique(arguments_of(layer, operation).round(6), return_counts=True)
        assert actual == pytest.approx(np.unique(values.round(6)), abs=1e-5), name
        if operation == Operation.SHEAR_X:
            assert counts / counts.sum() == pytest.approx([1 / 62] * 30 + [1 / 31] + [1 / 62] * 30, abs=0.006)


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
