"""Applies the augmentation that a worker drew to a whole batch, on its device: operations of RandAugment,
TrivialAugment, colour jitter and random shift before normalising, and erased boxes after.

Images are uint8 (N, 3, height, width). Each operation computes what that of torchvision on tensors computes, with one
argument per image. The host decides which images an operation gets, so nothing is read from the device. Images are
sorted by operation, so that related operations share their launches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample

_ALIGNMENT = 16
"""Bytes between which the arrays of one copy start."""
_FIRST_TABLES = (9, 0, 9, 9 + 257)
"""The first row of `_tables` for INVERT, POSTERIZE, SOLARIZE and SOLARIZE_ADD."""


class Operation(IntEnum):
    """Operation on an image. AUTOCONTRAST to SOLARIZE_ADD replace grey levels by a table, COLOR to SHARPNESS blend with
    another image, ROTATE to TRANSLATE_Y move pixels; one call applies all operations of such a group."""

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


Boxes = NDArray[np.int64]
"""(num_boxes, 5): row in the batch; top, left, height, width in pixels. At most one box for each image."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Changes of the images of one batch; all numbers are on the host. `layers` are applied before normalising,
    `erased` after."""

    layers: tuple[Layer, ...]
    erased: Boxes | None

    @classmethod
    def of_parts(cls, parts: "Sequence[Augmentation]", sizes: Sequence[int]) -> "Augmentation":
        """Join the augmentations of the parts of a batch. sizes: number of images of each part."""
        layers = []
        for same_layer in zip(*(part.layers for part in parts), strict=True):
            operations, arguments, fills = zip(*same_layer, strict=True)
            layers.append(Layer(np.concatenate(operations), np.concatenate(arguments), fills[0]))
        erased = [part.erased for part in parts if part.erased is not None]
        starts = accumulate(sizes, initial=0)
        boxes = [each + np.array([start, 0, 0, 0, 0]) for each, start in zip(erased, starts, strict=False)]
        return cls(layers=tuple(layers), erased=np.concatenate(boxes) if boxes else None)


class SortedLayer(NamedTuple):
    """A layer for images that are sorted by operation.

    order: int64 (N,), the sorted images. starts: the first row of each operation. tables: int64, rows of `_tables`, of
    the images with INVERT to SOLARIZE_ADD. weights: float32 (2, number of images, 1, 1, 1), of an image and of what is
    added to the image, with COLOR to SHARPNESS. matrices: see `affine_matrices`, with ROTATE to TRANSLATE_Y.
    """

    order: NDArray[np.int64]
    starts: list[int]
    tables: NDArray[np.int64]
    weights: NDArray[np.float32]
    matrices: NDArray[np.float32]
    fill: tuple[int, int, int]


def sorted_layer(layer: Layer, height: int, width: int) -> SortedLayer:
    """height, width: of the images, in pixels."""
    order = np.argsort(layer.operations, kind="stable")
    operations, arguments = layer.operations[order], layer.arguments[order]
    starts = np.searchsorted(operations, np.arange(len(Operation) + 1)).tolist()
    inverted, blended, moved = (starts[first] for first in (Operation.INVERT, Operation.COLOR, Operation.ROTATE))
    tables = np.ceil(arguments[inverted:blended]).astype(np.int64)
    tables[operations[inverted:blended] == Operation.INVERT] = 0  # solarize from grey level 0 on
    tables += np.array(_FIRST_TABLES)[operations[inverted:blended] - Operation.INVERT]
    factors = arguments[blended:moved]
    kept = np.where(operations[blended:moved] == Operation.SHARPNESS, 1, factors)
    weights = np.stack([kept, 1 - factors])[..., None, None, None].astype(np.float32)
    matrices = affine_matrices(operations[moved:], arguments[moved:], height, width)
    return SortedLayer(order, starts, tables, weights, matrices, layer.fill)


def affine_matrices(
    operations: NDArray[np.int64], arguments: NDArray[np.float64], height: int, width: int
) -> NDArray[np.float32]:
    """float32 (N, 2, 3): the source position of each output pixel, in units of half a side from the centre.

    Rotations turn about the centre; shears keep the first row or column, as in Pillow.
    """
    matrices = np.tile(np.eye(2, 3), (len(operations), 1, 1))
    turned, radians = operations == Operation.ROTATE, np.deg2rad(arguments)
    cosines, sines = np.cos(radians[turned]), np.sin(radians[turned])
    turns = [cosines, -sines * (height / width), sines * (width / height), cosines]
    matrices[turned, :, :2] = np.stack(turns, -1).reshape(-1, 2, 2)
    for axis, side, other, shear, translate in (
        (0, width, height, Operation.SHEAR_X, Operation.TRANSLATE_X),
        (1, height, width, Operation.SHEAR_Y, Operation.TRANSLATE_Y),
    ):
        sheared, translated = operations == shear, operations == translate
        matrices[sheared, axis, 1 - axis] = matrices[sheared, axis, 2] = arguments[sheared] * (other / side)
        matrices[translated, axis, 2] = -2 * arguments[translated] / side
    return matrices.astype(np.float32)


def augment(images: Tensor, layers: Sequence[Layer]) -> Tensor:
    """Copies of the images, uint8 (N, 3, height, width), in the same memory format, changed by one layer after the
    other."""
    plans = [sorted_layer(layer, *images.shape[-2:]) for layer in layers]
    rows, moves = np.arange(len(images)), []
    for plan in plans:
        moves.append(rows[plan.order])
        rows = np.argsort(plan.order)
    arrays = [array for plan in plans for array in (plan.tables, plan.weights, plan.matrices)]
    sent = to_device([*moves, rows, *arrays], images.device)
    for i, plan in enumerate(plans):
        images = select(images, sent[i])
        apply_sorted(images, plan, *sent[len(plans) + 1 + 3 * i :][:3])
    return select(images, sent[len(plans)])


def erase(images: Tensor, boxes: Boxes, mean: Sequence[float] = (0.0, 0.0, 0.0)) -> None:
    """Give the boxes of images the mean colour in place, by a number of operations that does not depend on the number
    of boxes. mean: RGB from 0 to 1, for uint8; it is 0 in normalised images."""
    if not len(boxes):
        return
    height, width = images.shape[-2:]
    limits = np.zeros((2, 2, len(images), 1), dtype=np.int32)  # start and end; y and x; image
    rows, starts, sides = boxes[:, 0], boxes[:, 1:3].T, boxes[:, 3:5].T
    limits[:, :, rows, 0] = starts, starts + sides
    ((start, end),) = to_device([limits], images.device)
    places = torch.arange(max(height, width), device=images.device)
    inside_y, inside_x = (places >= start) & (places < end)
    erased = inside_y[:, None, :height, None] & inside_x[:, None, None, :width]
    if images.is_floating_point():
        images.masked_fill_(erased, 0)
        return
    for channel, colour in zip(images.split(1, dim=1), mean, strict=True):
        channel.masked_fill_(erased, min(255, max(0, round(255 * colour))))


def apply_sorted(images: Tensor, plan: SortedLayer, tables: Tensor, weights: Tensor, matrices: Tensor) -> None:
    """Change sorted images in place."""
    start = plan.starts
    stretched, blended, moved = (start[i] for i in (Operation.AUTOCONTRAST, Operation.COLOR, Operation.ROTATE))
    if stretched < blended:
        equalized, inverted = start[Operation.EQUALIZE], start[Operation.INVERT]
        replace_levels(images[stretched:blended], equalized - stretched, inverted - equalized, tables)
    if blended < moved:
        ends = [start[i] - blended for i in (Operation.CONTRAST, Operation.BRIGHTNESS, Operation.SHARPNESS)]
        blend(images[blended:moved], ends, *weights)
    if moved < len(images):
        images[moved:] = affine(images[moved:], matrices, plan.fill)


def replace_levels(images: Tensor, num_stretched: int, num_equalized: int, tables: Tensor) -> None:
    """Replace grey levels in place: `autocontrast`, then `equalize`, then the other images by the `tables` of these
    numbers."""
    pixels = images.view(*images.shape[:2], -1)
    levels = pixels.long()
    with_statistics = levels[: num_stretched + num_equalized]
    parts = [_tables(images.device).index_select(0, tables)[:, None].expand(-1, 3, -1)]
    if len(with_statistics):
        brightest = with_statistics.amax(2, keepdim=True)
        if num_equalized:
            parts.insert(0, equalize(with_statistics[num_stretched:], brightest[num_stretched:]))
        if num_stretched:
            parts.insert(0, autocontrast(with_statistics[:num_stretched], brightest[:num_stretched]))
    torch.gather(torch.cat(parts), 2, levels, out=pixels)


def autocontrast(levels: Tensor, brightest: Tensor) -> Tensor:
    """Tables, uint8 (N, 3, 256), that stretch each channel to 0 to 255; a channel of one grey level stays."""
    darkest, all_levels = levels.amin(2, keepdim=True), _levels(levels.device)
    span = brightest - darkest
    stretched = (all_levels - darkest).div(span * (1 / 255)).clamp_(0, 255)
    return torch.where(span > 0, stretched, all_levels).to(torch.uint8)


def equalize(levels: Tensor, brightest: Tensor) -> Tensor:
    """Tables, uint8 (N, 3, 256), that spread the grey levels of each channel evenly, with Pillow's rounding; a channel
    with step 0 stays.

    The table of a channel is (pixels below the level + step // 2) // step, where step is 1/255 of the
    channel's pixels that are darker than its brightest level.
    """
    all_levels = _levels(levels.device)
    counts = levels.new_zeros(*levels.shape[:2], 256)
    counts.scatter_add_(2, levels, all_levels[1].expand_as(levels))
    below = counts.cumsum(2).sub_(counts)
    step = below.gather(2, brightest) // 255
    table = below.add_(step // 2).floor_divide_(step.clamp(min=1)).clamp_(max=255)
    return torch.where(step > 0, table, all_levels).to(torch.uint8)


def blend(images: Tensor, ends: Sequence[int], kept: Tensor, added: Tensor) -> None:
    """Multiply the images in place by `kept`, and add other images, multiplied by `added`.

    ends: after the images that get their grey image (COLOR), after the images that get their mean grey (CONTRAST), and
    after the images that get nothing (BRIGHTNESS). The rest (SHARPNESS) get the difference to a blurred image.
    """
    num_grey, num_mixed, num_unsharpened = ends
    mixed = images * kept
    if num_mixed:
        grey = _grey(images[:num_mixed])
        if num_grey < num_mixed:
            grey[num_grey:] = grey[num_grey:].mean((-3, -2, -1), keepdim=True)
        mixed[:num_mixed].addcmul_(grey, added[:num_mixed])
    if num_unsharpened < len(images):
        _sharpen(mixed[num_unsharpened:], added[num_unsharpened:])
    images.copy_(mixed.clamp_(0, 255))


def affine(images: Tensor, matrices: Tensor, fill: tuple[int, int, int]) -> Tensor:
    """Bilinear samples, float32 whole numbers, of the images at the source positions that `matrices` (see
    `affine_matrices`) give.

    torch's affine_grid multiplies matrices, with TF32 if enabled: errors of a tenth of a pixel at 224 px.
    """
    ys, xs = (_centres(side, images.device) for side in images.shape[-2:])
    of_x, of_y, offset = matrices[:, None, None].unbind(-1)
    grid = (of_x * xs[None, :, None] + of_y * ys[:, None, None]).add_(offset)
    color = _color(fill, images.device)
    sampled = grid_sample(images - color, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return sampled.add_(color).round_()


def _sharpen(images: Tensor, weights: Tensor) -> None:
    """Add the difference to a blurred image, times weights, in place. Pixels of the border stay, and so do images
    without inner pixels."""
    if min(images.shape[-2:]) <= 2:
        return
    inner = images[..., 1:-1, 1:-1]
    sums = avg_pool2d(images, 3, stride=1, divisor_override=1)
    blurred = sums.add_(inner, alpha=4).div_(13).round_()  # weights: 5 in the middle, 1 elsewhere
    inner.add_(blurred.sub_(inner).mul_(weights))


def _grey(images: Tensor) -> Tensor:
    """Whole grey levels, float32 (N, 1, height, width); ITU-R 601 weights."""
    red, green, blue = images.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()[:, None]


def select(images: Tensor, rows: Tensor) -> Tensor:
    """images[rows], in the same memory format."""
    if images.is_contiguous(memory_format=torch.channels_last):
        return images.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return images.index_select(0, rows)


def to_device(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """The arrays on the device, by one copy; the host does not wait."""
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    starts = [0, *accumulate(sizes)]
    content = np.empty(starts[-1], dtype=np.uint8)
    for start, array in zip(starts, arrays, strict=False):
        content[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    block = torch.from_numpy(content)
    sent = block.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else block
    return [
        sent[start : start + array.nbytes].view(torch.from_numpy(array).dtype).view(array.shape)
        for start, array in zip(starts, arrays, strict=False)
    ]


@cache
def _tables(device: torch.device) -> Tensor:
    """uint8 (395, 256): the new grey level of each grey level. Posterize to 0 to 8 bits, solarize from level 0 to 256
    on, solarize_add of 0 to 128 levels."""
    levels, bits, first, added = np.arange(256), *(np.arange(num)[:, None] for num in (9, 257, 129))
    posterized = levels & (256 - 2 ** (8 - bits))
    solarized = np.where(levels >= first, 255 - levels, levels)
    brightened = np.where(levels < 128, levels + added, levels)
    return torch.from_numpy(np.concatenate([posterized, solarized, brightened]).astype(np.uint8)).to(device)


@cache
def _levels(device: torch.device) -> Tensor:
    return torch.arange(256, device=device)


@cache
def _centres(size: int, device: torch.device) -> Tensor:
    """Positions of the pixels, in units of half a side from the centre."""
    return torch.arange(1 - size, size, 2, device=device) / size


@cache
def _color(rgb: tuple[int, int, int], device: torch.device) -> Tensor:
    return torch.tensor(rgb, dtype=torch.float32, device=device).view(1, 3, 1, 1)
