"""The resize of ragged crops as one Triton kernel."""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from imagenet_opt.data.transforms.resize import ImageFormat, RaggedCrops, Size, height_width

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # the default; Triton 3.9 warns if the variable is missing

_BLOCK = 128
"""Output pixels of a program."""


def resize_kernel(crops: RaggedCrops, *, size: Size, format: ImageFormat) -> Tensor:
    """See batch.resize_ragged."""
    height, width = height_width(size)
    images_NHWC = torch.empty((len(crops), height, width, 3), dtype=format.dtype, device=crops.pixels.device)
    grid = (len(crops), triton.cdiv(height * width, _BLOCK))
    if format.dtype == torch.uint8:
        factors, shifts = [1.0] * 3, [0.5] * 3  # the cast truncates, so a shift of 0.5 rounds
    else:
        factors = [1 / (255 * std) for std in format.std]
        shifts = [-mean / std for mean, std in zip(format.mean, format.std, strict=True)]
    if len(crops):  # the last batch of a validation may be empty on a process
        _resize[grid](
            crops.pixels, crops.heights, crops.widths, crops.offsets, crops.flips, crops.windows,
            images_NHWC, height, width, *factors, *shifts,
            INTERPOLATION=format.interpolation, BLOCK=_BLOCK,
        )  # fmt: skip
    return images_NHWC.permute(0, 3, 1, 2)


@triton.jit
def _resize(  # type: ignore[no-untyped-def]
    pixels, heights, widths, offsets, flips, windows, images, out_height, out_width,
    factor_r, factor_g, factor_b, shift_r, shift_g, shift_b,
    INTERPOLATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program makes BLOCK output pixels, row by row, of one image; a pixel is the weighted mean of its window.

    Output pixel o has its centre at start + (o + 0.5) * scale in the crop, where `windows` has the start of the image.
    A pixel's window is clipped at the crop's border, as in torch's upsample_bilinear2d_aa.
    """
    image = tl.program_id(0).to(tl.int64)
    height, width = tl.load(heights + image), tl.load(widths + image)
    start = tl.load(offsets + image)
    window = windows + image * 4
    top, left = tl.load(window), tl.load(window + 1)
    scale_y, scale_x = tl.load(window + 2) / out_height, tl.load(window + 3) / out_width
    reach_y, reach_x = _reach(scale_y, INTERPOLATION), _reach(scale_x, INTERPOLATION)

    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < out_height * out_width
    y, x = place // out_width, place % out_width
    x = tl.where(tl.load(flips + image) != 0, out_width - 1 - x, x)
    centre_y, centre_x = top + (y + 0.5) * scale_y, left + (x + 0.5) * scale_x
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
        weight_y = _weight(row + 0.5 - centre_y, scale_y, INTERPOLATION)
        weight_y = tl.where(row < last_y, weight_y, 0.0)
        for step_x in range((2 * reach_x).to(tl.int32) + 2):
            column = first_x + step_x
            weight = _weight(column + 0.5 - centre_x, scale_x, INTERPOLATION) * weight_y
            weight = tl.where(column < last_x, weight, 0.0)
            used = inside & (weight != 0.0)
            source = pixels + start + (row.to(tl.int64) * width + column) * 3
            red += weight * tl.load(source, mask=used, other=0).to(tl.float32)
            green += weight * tl.load(source + 1, mask=used, other=0).to(tl.float32)
            blue += weight * tl.load(source + 2, mask=used, other=0).to(tl.float32)
            total += weight
    total = tl.where(inside, total, 1.0)
    target = images + (image * out_height * out_width + place) * 3
    kind = images.dtype.element_ty
    tl.store(target, (_pixel(red, total, INTERPOLATION) * factor_r + shift_r).to(kind), mask=inside)
    tl.store(target + 1, (_pixel(green, total, INTERPOLATION) * factor_g + shift_g).to(kind), mask=inside)
    tl.store(target + 2, (_pixel(blue, total, INTERPOLATION) * factor_b + shift_b).to(kind), mask=inside)


@triton.jit
def _reach(scale, INTERPOLATION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Distance, in source pixels, within which the centres of the pixels of a window lie."""
    if INTERPOLATION == "area":
        reach = 0.5 * scale + 0.5
    elif INTERPOLATION == "bicubic":
        reach = 2 * tl.maximum(scale, 1.0)
    else:
        reach = tl.maximum(scale, 1.0)
    return reach


@triton.jit
def _weight(distance, scale, INTERPOLATION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Weight of a source pixel. distance: from the centre of the output pixel, in source pixels.

    bilinear: a triangle. bicubic: Keys' cubic with a = -0.5, as in Pillow and in torch with antialias=True. area: the
    part of the source pixel that the output pixel covers.
    """
    if INTERPOLATION == "area":
        weight = tl.minimum(tl.maximum(0.5 * scale + 0.5 - tl.abs(distance), 0.0), tl.minimum(scale, 1.0))
    elif INTERPOLATION == "bicubic":
        far = tl.abs(distance) / tl.maximum(scale, 1.0)
        near = (1.5 * far - 2.5) * far * far + 1.0
        outer = ((-0.5 * far + 2.5) * far - 4.0) * far + 2.0
        weight = tl.where(far < 1.0, near, tl.where(far < 2.0, outer, 0.0))
    else:
        weight = tl.maximum(1.0 - tl.abs(distance) / tl.maximum(scale, 1.0), 0.0)
    return weight


@triton.jit
def _pixel(weighted, total, INTERPOLATION: tl.constexpr):  # type: ignore[no-untyped-def]
    pixel = weighted / total
    if INTERPOLATION == "bicubic":  # some weights are negative
        pixel = tl.clamp(pixel, 0.0, 255.0)
    return pixel
