"""The resize of ragged crops as one Triton kernel."""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from imagenet_opt.data.transforms.normalize import MEAN, STD

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as ever; Triton 3.9 warns where it is not said

_BLOCK = 128
"""Output pixels a program."""


def resize_kernel(
    pixels: Tensor, heights: Tensor, widths: Tensor, offsets: Tensor, flips: Tensor, *, size: int, dtype: torch.dtype
) -> Tensor:
    """images_NCHW, channels_last: see resize.resize_ragged."""
    images_NHWC = torch.empty((len(heights), size, size, 3), dtype=dtype, device=pixels.device)
    grid = (len(heights), triton.cdiv(size * size, _BLOCK))
    if dtype == torch.uint8:
        factors, shifts = [1.0] * 3, [0.5] * 3  # the cast cuts off, so this rounds
    else:
        factors = [1 / (255 * std) for std in STD]
        shifts = [-mean / std for mean, std in zip(MEAN, STD, strict=True)]
    _resize[grid](pixels, heights, widths, offsets, flips, images_NHWC, size, *factors, *shifts, BLOCK=_BLOCK)
    return images_NHWC.permute(0, 3, 1, 2)


@triton.jit
def _resize(  # type: ignore[no-untyped-def]
    pixels, heights, widths, offsets, flips, images, size,
    factor_r, factor_g, factor_b, shift_r, shift_g, shift_b,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A program makes BLOCK output pixels, row by row, of one image; each is the weighted mean of its window.

    Output pixel o has its centre at (o + 0.5) * scale in the source; a source pixel s weighs
    max(0, 1 - |s + 0.5 - centre| / max(scale, 1)). The window is clipped at the crop's border, as in torch's
    upsample_bilinear2d_aa.
    """
    image = tl.program_id(0).to(tl.int64)
    height, width = tl.load(heights + image), tl.load(widths + image)
    start = tl.load(offsets + image)
    scale_y, scale_x = height.to(tl.float32) / size, width.to(tl.float32) / size
    reach_y, reach_x = tl.maximum(scale_y, 1.0), tl.maximum(scale_x, 1.0)

    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size * size
    y, x = place // size, place % size
    x = tl.where(tl.load(flips + image) != 0, size - 1 - x, x)
    centre_y, centre_x = (y + 0.5) * scale_y, (x + 0.5) * scale_x
    first_y = tl.maximum((centre_y - reach_y + 0.5).to(tl.int32), 0)
    first_x = tl.maximum((centre_x - reach_x + 0.5).to(tl.int32), 0)
    last_y = tl.minimum((centre_y + reach_y + 0.5).to(tl.int32), height)
    last_x = tl.minimum((centre_x + reach_x + 0.5).to(tl.int32), width)

    red = tl.zeros([BLOCK], tl.float32)
    green = tl.zeros([BLOCK], tl.float32)
    blue = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for step_y in range((2 * reach_y).to(tl.int32) + 2):
        row = first_y + step_y
        weight_y = tl.maximum(1.0 - tl.abs(row + 0.5 - centre_y) / reach_y, 0.0)
        weight_y = tl.where(row < last_y, weight_y, 0.0)
        for step_x in range((2 * reach_x).to(tl.int32) + 2):
            column = first_x + step_x
            weight = tl.maximum(1.0 - tl.abs(column + 0.5 - centre_x) / reach_x, 0.0) * weight_y
            weight = tl.where(column < last_x, weight, 0.0)
            taken = inside & (weight > 0.0)
            source = pixels + start + (row.to(tl.int64) * width + column) * 3
            red += weight * tl.load(source, mask=taken, other=0).to(tl.float32)
            green += weight * tl.load(source + 1, mask=taken, other=0).to(tl.float32)
            blue += weight * tl.load(source + 2, mask=taken, other=0).to(tl.float32)
            total += weight
    total = tl.maximum(total, 1e-12)  # outside the image nothing was added
    target = images + (image * size * size + place) * 3
    kind = images.dtype.element_ty
    tl.store(target, (red / total * factor_r + shift_r).to(kind), mask=inside)
    tl.store(target + 1, (green / total * factor_g + shift_g).to(kind), mask=inside)
    tl.store(target + 2, (blue / total * factor_b + shift_b).to(kind), mask=inside)
