"""Resizing ragged crops against torchvision's resized_crop, in plain torch and as a Triton kernel."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import horizontal_flip, resized_crop

from imagenet_opt.data.transforms.resize import MEAN, STD, ImageFormat, resize, resize_torch

Ragged = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def crops(num: int, most: int, seed: int) -> tuple[list[tuple[torch.Tensor, tuple[int, ...], bool]], Ragged]:
    """Random images and boxes of 1 to `most` pixels a side, as they are and as a ragged batch."""
    rng = np.random.default_rng(seed)
    sources, parts = [], []
    for i in range(num):
        height, width = rng.integers(1, most + 1, 2)
        image = torch.from_numpy(rng.integers(0, 256, (3, height, width), dtype=np.uint8))
        box_height, box_width = (
            1 if i % 9 == side else rng.integers(1, n + 1) for side, n in ((0, height), (1, width))
        )
        top, left = rng.integers(0, height - box_height + 1), rng.integers(0, width - box_width + 1)
        box = tuple(int(n) for n in (top, left, box_height, box_width))
        sources.append((image, box, bool(rng.integers(2))))
        parts.append(image[:, top : top + box_height, left : left + box_width].permute(1, 2, 0).flatten())
    sizes = torch.tensor([box[2:] for _, box, _ in sources], dtype=torch.int32)
    lengths = torch.tensor([len(part) for part in parts])
    offsets = lengths.cumsum(0) - lengths
    flips = torch.tensor([flip for _, _, flip in sources])
    return sources, (torch.cat(parts), sizes[:, 0].contiguous(), sizes[:, 1].contiguous(), offsets, flips)


def reference(image: torch.Tensor, box: tuple[int, ...], size: int, interpolation: str) -> torch.Tensor:
    """float (3, size, size), 0 to 255: torchvision's, or for "area" by the matrices of the overlaps of pixels."""
    if interpolation != "area":
        mode = InterpolationMode(interpolation)
        return resized_crop(image.float(), *box, size=[size, size], interpolation=mode, antialias=True).clamp(0, 255)
    top, left, height, width = box
    rows, columns = overlaps(height, size), overlaps(width, size)
    return rows @ image[:, top : top + height, left : left + width].float() @ columns.T


def overlaps(source: int, size: int) -> torch.Tensor:
    """(size, source): the share of each output pixel that a source pixel fills."""
    ends, pixels = np.arange(size + 1) * source / size, np.arange(source)
    last = np.minimum(ends[1:, None], pixels + 1)
    share = np.clip(last - np.maximum(ends[:-1, None], pixels), 0, None) * size / source
    return torch.from_numpy(share).float()


def check(images: torch.Tensor, sources: list, size: int, interpolation: str = "bilinear") -> None:
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    for actual, (image, box, flip) in zip(images, sources, strict=True):
        expected = reference(image, box, size, interpolation)
        expected = horizontal_flip(expected) if flip else expected
        off = ((actual.float() * std + mean) - expected / 255).abs()
        assert off.mean() <= 1 / 255, (box, flip)
        assert off.max() <= 3 / 255, (box, flip)


@pytest.mark.parametrize(("size", "most", "num"), [(1, 9, 50), (24, 24, 100), (32, 100, 200), (32, 4, 50)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "area"])
def test_plain_torch_is_torchvision(size: int, most: int, num: int, interpolation: str) -> None:
    sources, ragged = crops(num, most, seed=size + most)
    images = resize_torch(*ragged, size=size, format=ImageFormat(interpolation=interpolation))
    assert images.is_contiguous(memory_format=torch.channels_last)
    check(images, sources, size, interpolation)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "area"])
def test_pixels_of_a_worker_are_those_of_the_device(interpolation: str) -> None:
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 37, 61), dtype=np.uint8))
    actual = resize(pixels, 20, True, interpolation)
    assert actual.dtype == torch.uint8
    assert (actual.float() - resize(pixels.float(), 20, True, interpolation)).abs().max() <= 1


def test_other_dtypes_are_the_same_images_rounded() -> None:
    _, ragged = crops(40, 30, seed=0)
    exact = resize_torch(*ragged, size=16, format=ImageFormat())
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(resize_torch(*ragged, size=16, format=ImageFormat(dtype=dtype)), exact.to(dtype))
    actual = resize_torch(*ragged, size=16, format=ImageFormat(dtype=torch.uint8))
    assert actual.dtype == torch.uint8
    check_pixels(actual, exact)


def check_pixels(actual: torch.Tensor, normalised: torch.Tensor) -> None:
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    assert (actual.float() - 255 * (normalised * std + mean)).abs().max() <= 0.501


IN_INTERPRETER = """
import sys, torch
from imagenet_opt.data.transforms.resize import ImageFormat
from imagenet_opt.data.transforms.resize_kernel import resize_kernel
ragged, kinds = torch.load(sys.argv[1])
formats = [ImageFormat(interpolation=name, dtype=dtype) for name, dtype in kinds]
torch.save([resize_kernel(*ragged, size=9, format=format) for format in formats], sys.argv[2])
"""


@pytest.mark.slow
def test_the_kernel_is_torchvision_in_tritons_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    sources, ragged = crops(5, 16, seed=0)  # smaller and larger than the images, and of one pixel a side
    filters, dtypes = ("bilinear", "bicubic", "area"), (torch.uint8, torch.bfloat16, torch.float16)
    kinds = [*((name, torch.float32) for name in filters), *(("bilinear", dtype) for dtype in dtypes)]
    torch.save((ragged, kinds), tmp_path / "ragged")
    command = [sys.executable, "-c", IN_INTERPRETER, tmp_path / "ragged", tmp_path / "images"]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "images")
    for images, name in zip(found, filters, strict=False):
        assert images.is_contiguous(memory_format=torch.channels_last)
        check(images, sources, 9, name)
    check_pixels(found[3], found[0])
    for rounded, dtype in zip(found[3:], dtypes, strict=True):
        assert rounded.dtype == dtype
        if dtype.is_floating_point:
            torch.testing.assert_close(rounded.float(), found[0], rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
