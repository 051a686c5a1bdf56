"""Resizes ragged crops to images of one size: antialiased resize, flip, normalise and cast, for a whole batch."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from imagenet_opt.data.batch import Batch, RaggedBatch
from imagenet_opt.data.transforms.normalize import normalize


def resize_batch(batch: RaggedBatch, dtype: torch.dtype) -> Batch:
    """The batch with its crops as images of its key's size, on the device of the crops."""
    images = resize_ragged(
        batch.pixels, batch.heights, batch.widths, batch.offsets, batch.flips, size=batch.key.image_size, dtype=dtype
    )
    facts = (batch.labels, batch.indices, batch.valid, batch.key, batch.stats, None)
    return Batch(*facts, images, augmentation=batch.augmentation)


def resize_ragged(
    pixels: Tensor, heights: Tensor, widths: Tensor, offsets: Tensor, flips: Tensor, *, size: int, dtype: torch.dtype
) -> Tensor:
    """images_NCHW: `dtype` (N, 3, size, size) in channels_last order; arguments as in RaggedBatch.

    Normalised if `dtype` is floating; uint8 has the pixels themselves, 0 to 255, rounded.
    The filter is a triangle as wide as the reduction, as in torchvision's resize with antialias=True. On a GPU one
    Triton kernel does it all; on a CPU torch does it image by image.
    """
    if pixels.device.type == "cuda":
        from imagenet_opt.data.transforms.resize_kernel import resize_kernel  # Triton is there where CUDA is

        return resize_kernel(pixels, heights, widths, offsets, flips, size=size, dtype=dtype)
    return resize_torch(pixels, heights, widths, offsets, flips, size=size, dtype=dtype)


def resize_torch(
    pixels: Tensor, heights: Tensor, widths: Tensor, offsets: Tensor, flips: Tensor, *, size: int, dtype: torch.dtype
) -> Tensor:
    """The same in plain torch: the reference for the kernel, and the version for CPUs."""
    images = torch.empty((len(heights), size, size, 3)).permute(0, 3, 1, 2)
    rows = zip(heights.tolist(), widths.tolist(), offsets.tolist(), flips.tolist(), strict=True)
    for image, (height, width, start, flip) in zip(images, rows, strict=True):
        crop_CHW = pixels[start : start + height * width * 3].view(height, width, 3).permute(2, 0, 1).float()
        image.copy_(resize(crop_CHW, size, flip))
    return images.add_(0.5).to(dtype) if dtype == torch.uint8 else normalize(images).to(dtype)


def resize(crop_CHW: Tensor, size: int, flip: bool) -> Tensor:
    """(3, size, size) in the crop's dtype; uint8 is rounded."""
    resized = interpolate(crop_CHW[None], size=(size, size), mode="bilinear", antialias=True)[0]
    return resized.flip(-1) if flip else resized
