"""Each operation on a whole batch against torchvision's operation on each image."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import solarize_add
from torchvision.transforms.v2 import functional as F

from imagenet_opt import ops
from imagenet_opt.ops import Layer, Operation

BLACK = (0, 0, 0)


def images_of(num: int, height: int = 32, width: int = 32, seed: int = 0) -> torch.Tensor:
    """Gradients with noise, in different ranges of grey levels; one image of one colour."""
    rng = np.random.default_rng(seed)
    ramp = np.add.outer(np.arange(height) * 3 / height, np.arange(width) * 5 / width)[None, None] * 25
    low, high = rng.uniform(0, 80, (num, 3, 1, 1)), rng.uniform(120, 255, (num, 3, 1, 1))
    images = np.clip(ramp + rng.normal(0, 30, (num, 3, height, width)), low, high)
    images[-1] = rng.integers(0, 256, (3, 1, 1))
    return torch.from_numpy(images.astype(np.uint8))


def layer(operation: Operation, arguments: list[float], fill: tuple[int, int, int] = BLACK) -> Layer:
    return Layer(np.full(len(arguments), operation), np.array(arguments, dtype=np.float64), fill)


FACTORS = [0.01, 0.1, 0.37, 0.5, 0.883, 1.0, 1.25, 1.63, 1.9, 1.99]
POINT = {
    Operation.AUTOCONTRAST: (lambda image, _: F.autocontrast(image), [0.0] * 8),
    Operation.EQUALIZE: (lambda image, _: F.equalize(image), [0.0] * 8),
    Operation.INVERT: (lambda image, _: F.invert(image), [0.0] * 8),
    Operation.POSTERIZE: (lambda image, bits: F.posterize(image, int(bits)), list(range(9))),
    Operation.SOLARIZE: (F.solarize, [0, 1, 76.5, 128, 200, 254.9, 255]),
    Operation.COLOR: (F.adjust_saturation, FACTORS),
    Operation.CONTRAST: (F.adjust_contrast, FACTORS),
    Operation.BRIGHTNESS: (F.adjust_brightness, FACTORS),
    Operation.SHARPNESS: (F.adjust_sharpness, FACTORS),
}


@pytest.mark.parametrize("operation", POINT, ids=lambda operation: operation.name)
def test_operations_on_points_are_torchvisions(operation: Operation) -> None:
    reference, arguments = POINT[operation]
    images = images_of(len(arguments))
    actual = ops.augment(images, layer(operation, arguments))
    expected = torch.stack([reference(image, value) for image, value in zip(images, arguments, strict=True)])
    assert torch.equal(actual, expected)
    assert not torch.equal(actual, images)


def test_solarize_add_is_timms() -> None:
    images, levels = images_of(4), [0, 33, 77, 110]
    actual = ops.augment(images, layer(Operation.SOLARIZE_ADD, levels))
    for image, level, ours in zip(images, levels, actual, strict=True):
        theirs = solarize_add(Image.fromarray(image.permute(1, 2, 0).numpy()), level)
        assert np.array_equal(ours.permute(1, 2, 0).numpy(), np.asarray(theirs))


def moved(image: torch.Tensor, operation: Operation, value: float) -> torch.Tensor:
    """By torchvision, as its TrivialAugmentWide calls it."""
    degrees = math.degrees(math.atan(value))
    options = {"interpolation": F.InterpolationMode.BILINEAR}
    unmoved = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    if operation == Operation.ROTATE:
        return F.rotate(image, value, **options)
    if operation == Operation.SHEAR_X:
        return F.affine(image, **unmoved | {"shear": [degrees, 0.0], "center": [0, 0]}, **options)
    if operation == Operation.SHEAR_Y:
        return F.affine(image, **unmoved | {"shear": [0.0, degrees], "center": [0, 0]}, **options)
    translate = [value, 0] if operation == Operation.TRANSLATE_X else [0, value]
    return F.affine(image, **unmoved | {"translate": translate}, **options)


MOVES = {
    Operation.ROTATE: [-135.0, -30.0, -7.3, 0.0, 4.5, 30.0, 90.0, 134.0],
    Operation.SHEAR_X: [-0.99, -0.3, -0.01, 0.0, 0.21, 0.99],
    Operation.SHEAR_Y: [-0.99, -0.3, -0.01, 0.0, 0.21, 0.99],
    Operation.TRANSLATE_X: [-40, -14.4, -1, 0, 0.5, 7, 32],
    Operation.TRANSLATE_Y: [-40, -14.4, -1, 0, 0.5, 7, 32],
}


@pytest.mark.parametrize("operation", MOVES, ids=lambda operation: operation.name)
@pytest.mark.parametrize("size", [(224, 224), (120, 200)])
def test_moves_are_torchvisions(operation: Operation, size: tuple[int, int]) -> None:
    arguments = MOVES[operation]
    images = images_of(len(arguments), *size)
    actual = ops.augment(images, layer(operation, arguments))
    expected = torch.stack([moved(image, operation, value) for image, value in zip(images, arguments, strict=True)])
    assert (actual.int() - expected.int()).abs().max() <= 1


def test_each_image_of_a_batch_gets_its_own_operations() -> None:
    operations = [*Operation] * 2
    arguments = [{**POINT, **{name: (None, values) for name, values in MOVES.items()}}[name][1][2]
                 if name in POINT or name in MOVES else 40.0 for name in operations]  # fmt: skip
    order = np.random.default_rng(1).permutation(len(operations))
    mixed = Layer(np.array(operations)[order], np.array(arguments, dtype=np.float64)[order], (9, 8, 7))
    images = images_of(len(operations)).contiguous(memory_format=torch.channels_last)
    before = images.clone()
    together = ops.augment(images, mixed)
    assert torch.equal(images, before) and together.is_contiguous(memory_format=torch.channels_last)
    for row in range(len(images)):
        alone = Layer(*(column[row : row + 1] for column in mixed[:2]), mixed.fill)
        assert torch.equal(together[row : row + 1], ops.augment(images[row : row + 1], alone)), row
