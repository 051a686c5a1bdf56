"""The operations of RandAugment, TrivialAugment and colour jitter, for whole batches on their device.

Images are uint8 (N, 3, size, size). Each operation computes what torchvision's operation on tensors computes, with one
argument per image. The host decides which images an operation gets, so nothing is read from the device.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample


class Operation(IntEnum):
    """Operation on an image. The operations from ROTATE on move pixels; one call applies all of them."""

    NOTHING = 0
    AUTOCONTRAST = 1
    EQUALIZE = 2
    INVERT = 3
    POSTERIZE = 4
    SOLARIZE = 5
    SOLARIZE_ADD = 6
    COLOR = 7
    CONTRAST = 8
    BRIGHTNESS = 9
    SHARPNESS = 10
    ROTATE = 11
    SHEAR_X = 12
    SHEAR_Y = 13
    TRANSLATE_X = 14
    TRANSLATE_Y = 15


class Layer(NamedTuple):
    """One operation for each image of a batch.

    operations: int64 (N,), values of Operation. arguments: float64 (N,). POSTERIZE: bits to keep, 0 to 8. SOLARIZE: the
    first grey level to invert. SOLARIZE_ADD: grey levels to add below 128, 0 to 128. COLOR, CONTRAST, BRIGHTNESS,
    SHARPNESS: factor; 1 changes nothing. ROTATE: degrees counterclockwise. Shears: pixels per pixel. Translations:
    pixels to the right or down. fill: red, green, blue, 0 to 255, of pixels from outside of an image.
    """

    operations: NDArray[np.int64]
    arguments: NDArray[np.float64]
    fill: tuple[int, int, int]


def apply_layer(images: Tensor, layer: Layer) -> None:
    """Change the images in place: one call for each operation that occurs, on all images that get it."""
    order = np.argsort(layer.operations, kind="stable")
    operations, arguments = layer.operations[order], layer.arguments[order]
    rows, values = _to_device(order, images.device), _to_device(arguments, images.device)
    for operation, change in _POINT_OPERATIONS.items():
        first, last = np.searchsorted(operations, [operation, operation + 1]).tolist()
        if first < last:
            chosen = rows[first:last]
            changed = change(images.index_select(0, chosen), values[first:last, None, None, None])
            images.index_copy_(0, chosen, changed)
    first = int(np.searchsorted(operations, Operation.ROTATE))
    if first < len(order):
        matrices = affine_matrices(operations[first:], arguments[first:], images.shape[-1])
        moved = affine(images.index_select(0, rows[first:]), _to_device(matrices, images.device), layer.fill)
        images.index_copy_(0, rows[first:], moved)


def affine_matrices(operations: NDArray[np.int64], arguments: NDArray[np.float64], size: int) -> NDArray[np.float32]:
    """float32 (N, 2, 3): the source position of each output pixel, in units of half a side from the centre.

    Rotations turn about the centre; shears keep the first row or column, as in Pillow.
    """
    matrices = np.tile(np.eye(2, 3), (len(operations), 1, 1))
    turned, radians = operations == Operation.ROTATE, np.deg2rad(arguments)
    cosines, sines = np.cos(radians[turned]), np.sin(radians[turned])
    matrices[turned, :, :2] = np.stack([cosines, -sines, sines, cosines], -1).reshape(-1, 2, 2)
    for axis, shear, translate in (
        (0, Operation.SHEAR_X, Operation.TRANSLATE_X),
        (1, Operation.SHEAR_Y, Operation.TRANSLATE_Y),
    ):
        sheared, translated = operations == shear, operations == translate
        matrices[sheared, axis, 1 - axis] = matrices[sheared, axis, 2] = arguments[sheared]
        matrices[translated, axis, 2] = -2 * arguments[translated] / size
    return matrices.astype(np.float32)


def affine(images: Tensor, matrices: Tensor, fill: tuple[int, int, int]) -> Tensor:
    """Bilinear samples of the images at the source positions that `matrices` (see `affine_matrices`) give.

    torch's affine_grid multiplies matrices, with TF32 if enabled: errors of a tenth of a pixel at 224 px.
    """
    size = images.shape[-1]
    centres = torch.arange(1 - size, size, 2, device=images.device) / size
    x, y = centres[None, None, :], centres[None, :, None]
    row_x, row_y = matrices[:, :, :, None, None].unbind(1)
    grid = torch.stack([row[:, 0] * x + row[:, 1] * y + row[:, 2] for row in (row_x, row_y)], -1)
    color = _color(fill, images.device)
    sampled = grid_sample(images - color, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return sampled.add_(color).round_().to(torch.uint8)


def autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretches each channel to 0 to 255; a channel of one grey level stays."""
    low, high = images.amin((-2, -1), keepdim=True).float(), images.amax((-2, -1), keepdim=True).float()
    is_flat = low == high
    scale = torch.where(is_flat, 1.0, (high - low) * (1 / 255))
    return (images - torch.where(is_flat, 0.0, low)).div_(scale).clamp_(0, 255).to(torch.uint8)


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Spreads the grey levels of each channel evenly, with Pillow's rounding; a channel with step 0 stays.

    The table of a channel is (pixels below the level + step // 2) // step, where step is 1/255 of the
    channel's pixels that are darker than its brightest level.
    """
    levels = images.flatten(2).long()
    counts = torch.zeros((*levels.shape[:2], 256), dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    brightest = counts.gather(2, images.amax((-2, -1)).long()[..., None])
    step = (levels.shape[-1] - brightest) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255).to(torch.uint8)
    return torch.where(step[..., None] > 0, table.gather(2, levels).view(images.shape), images)


def invert(images: Tensor, _: Tensor) -> Tensor:
    return images.bitwise_not()


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    return images & (256 - 2 ** (8 - bits)).to(torch.uint8)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(images >= threshold, images.bitwise_not(), images)


def solarize_add(images: Tensor, levels: Tensor) -> Tensor:
    return torch.where(images < 128, images + levels.to(torch.uint8), images)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return images.mul(factor.float()).clamp_(0, 255).to(torch.uint8)


def color(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _grey(images), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _grey(images).mean((-3, -2, -1), keepdim=True), factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blends with a blurred image; pixels of the border stay, and images without inner pixels stay."""
    if images.shape[-1] <= 2:
        return images
    sharp = images.float()
    inner = sharp[..., 1:-1, 1:-1]
    sums = avg_pool2d(sharp, 3, stride=1, divisor_override=1)
    blurred = sums.add_(inner, alpha=4).div_(13).round_()  # weights: 5 in the middle, 1 elsewhere
    inner.add_(blurred.sub_(inner).mul_((1 - factor).float()))
    return sharp.clamp_(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    """Whole grey levels, float32 (N, 1, size, size); ITU-R 601 weights."""
    red, green, blue = images.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()[:, None]


def _blend(images: Tensor, others: Tensor, factor: Tensor) -> Tensor:
    """factor x image + (1 - factor) x other."""
    mixed = torch.addcmul(images.mul(factor.float()), others, (1 - factor).float())
    return mixed.clamp_(0, 255).to(torch.uint8)


def _to_device(numbers: NDArray[np.generic], device: torch.device) -> Tensor:
    """A copy on the device; the host does not wait."""
    tensor = torch.from_numpy(numbers)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


@cache
def _color(rgb: tuple[int, int, int], device: torch.device) -> Tensor:
    return torch.tensor(rgb, dtype=torch.float32, device=device).view(1, 3, 1, 1)


_POINT_OPERATIONS: dict[Operation, Callable[[Tensor, Tensor], Tensor]] = {
    Operation.AUTOCONTRAST: autocontrast, Operation.EQUALIZE: equalize, Operation.INVERT: invert,
    Operation.POSTERIZE: posterize, Operation.SOLARIZE: solarize, Operation.SOLARIZE_ADD: solarize_add,
    Operation.COLOR: color, Operation.CONTRAST: contrast, Operation.BRIGHTNESS: brightness,
    Operation.SHARPNESS: sharpness,
}  # fmt: skip
