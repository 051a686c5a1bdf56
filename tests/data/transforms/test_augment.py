"""Draws of policies, against timm's RandAugment and RandomErasing, and torchvision's TrivialAugmentWide."""

import random

import numpy as np
import pytest
import torch
from timm.data import auto_augment
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import autoaugment

from imagenet_opt import ops
from imagenet_opt.ops import Operation

SIZE = 224
A2 = ops.RandAugment(magnitude=7, noise=0.5, increasing=True)
TIMM_NAMES = {name.title().replace("_", ""): Operation[name] for name in Operation.__members__} | {
    "AutoContrast": Operation.AUTOCONTRAST, "TranslateXRel": Operation.TRANSLATE_X,
    "TranslateYRel": Operation.TRANSLATE_Y,
}  # fmt: skip
MOVED_BY_PIXELS = (Operation.TRANSLATE_X, Operation.TRANSLATE_Y)


def drawn(policy: ops.RandAugment | ops.TrivialAugment, num: int = 200_000, seed: int = 0) -> list[ops.Layer]:
    return policy.layers(np.random.default_rng(seed).random((num, policy.num_draws)), SIZE)


def operation_of(timm_name: str) -> Operation:
    return TIMM_NAMES[timm_name.removesuffix("Increasing")]


def arguments_of(layer: ops.Layer, operation: Operation) -> np.ndarray:
    return layer.arguments[layer.operations == operation]


@pytest.mark.parametrize("increasing", [False, True])
@pytest.mark.parametrize("magnitude", [0, 7, 10])
def test_magnitudes_are_timms(magnitude: int, increasing: bool) -> None:
    policy = ops.RandAugment(magnitude=magnitude, num_layers=1, probability=1, increasing=increasing)
    (layer,) = drawn(policy, 2_000)
    names = auto_augment._RAND_INCREASING_TRANSFORMS if increasing else auto_augment._RAND_TRANSFORMS
    assert {operation_of(name) for name in names} == set(layer.operations)
    for name in names:
        actual = sorted(set(arguments_of(layer, operation_of(name)).tolist()))
        if (argument := auto_augment.LEVEL_TO_ARG[name]) is None:
            assert actual == [0.0]
            continue
        scale = SIZE if operation_of(name) in MOVED_BY_PIXELS else 1
        expected = sorted({argument(magnitude, {})[0] * scale for _ in range(50)})  # with both signs
        assert actual == pytest.approx(expected), name


@pytest.mark.parametrize(
    "policy", [A2, ops.RandAugment(magnitude=8, noise=101, largest=20), ops.RandAugment(magnitude=4, noise=np.inf)]
)
def test_noise_is_distributed_as_timms(policy: ops.RandAugment) -> None:
    """Quantiles of the rotation, whose size is 3 degrees times the magnitude: normal, or above 100 uniform from 0."""
    (layer, _) = drawn(policy)
    actual, rng = np.abs(arguments_of(layer, Operation.ROTATE)) / 3, np.random.default_rng(1)
    normal, uniform = np.clip(rng.normal(7, 0.5, 20_000), 0, 10), rng.random(20_000)
    expected = normal if policy == A2 else uniform * policy.magnitude
    shares = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]
    assert np.quantile(actual, shares) == pytest.approx(np.quantile(expected, shares), abs=0.2)


def test_two_operations_an_image_each_with_half_probability() -> None:
    first, second = drawn(A2)
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
    (layer,) = drawn(ops.TrivialAugment())
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


def test_texts_are_policies() -> None:
    images = torch.randint(0, 256, (32, 3, 20, 20), dtype=torch.uint8)
    for text, policy in (
        ("rand", ops.RandAugment()),
        ("rand-m7-mstd0.5-inc1", A2),
        (
            "rand-m15-n3-p0.9-mstd9-mmax20",
            ops.RandAugment(magnitude=15, num_layers=3, probability=0.9, noise=9, largest=20),
        ),
        ("trivialaugment", ops.TrivialAugment()),
    ):
        known = ops.augment(images, policy, generator=torch.Generator())
        assert torch.equal(ops.augment(images, text, generator=torch.Generator()), known)


def boxes_of(images: torch.Tensor) -> np.ndarray:
    """top, left, height, width of the box of zeros in each image that has one."""
    found = []
    for image in images:
        rows, columns = torch.nonzero((image == 0).all(0), as_tuple=True)
        if len(rows):
            top, left = int(rows.min()), int(columns.min())
            found.append((top, left, int(rows.max()) - top + 1, int(columns.max()) - left + 1))
            assert len(rows) == found[-1][2] * found[-1][3] and (image == 0).sum() == 3 * len(rows)
    return np.array(found)


def test_erased_boxes_are_distributed_as_timms() -> None:
    random.seed(0)
    timms = RandomErasing(0.25, device="cpu")
    expected = boxes_of(torch.stack([timms(torch.ones(3, 48, 80)) for _ in range(4_000)]))
    images = torch.ones(4_000, 3, 48, 80, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    ops.erase(images, 0.25, generator=torch.Generator())
    actual = boxes_of(images)
    assert len(expected) / 4_000 == pytest.approx(0.25, abs=0.03)
    assert len(actual) / 4_000 == pytest.approx(0.25, abs=0.02)
    shares = [0.05, 0.25, 0.5, 0.75, 0.95]
    for ours, theirs in zip(actual.T, expected.T, strict=True):
        assert np.quantile(ours, shares) == pytest.approx(np.quantile(theirs, shares), abs=3)
    assert (actual[:, :2] + actual[:, 2:]).max(0).tolist() == [48, 80]  # the last row and column can be erased
