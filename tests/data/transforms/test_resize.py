"""ops.resize against torchvision, and of windows against Pillow, in plain torch and as a kernel."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import horizontal_flip, resized_crop

from imagenet_opt import ops

Source = tuple[torch.Tensor, tuple[float, ...], bool]
"""A crop (3, height, width), the window in it, and whether it is flipped."""
MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))


def crops(num: int, most: int, seed: int) -> tuple[list[Source], ops.RaggedCrops]:
    """Random crops of 1 to `most` pixels a side, as they are and as a ragged batch. Every third has a window with
    fractions of a pixel."""
    rng = np.random.default_rng(seed)
    sources = list[Source]()
    for i in range(num):
        height, width = (1 if i % 9 == side else int(rng.integers(1, most + 1)) for side in (0, 1))
        window = (0.0, 0.0, float(height), float(width))
        if i % 3 == 2:
            share, place = rng.uniform(0.2, 1, 2), rng.uniform(0, 1, 2)
            length = share * (height, width)
            window = tuple(np.float32([*(place * ((height, width) - length)), *length]).tolist())
        crop = torch.from_numpy(rng.integers(0, 256, (3, height, width), dtype=np.uint8))
        sources.append((crop, window, bool(rng.integers(2))))
    images, windows, flips = zip(*sources, strict=True)
    return sources, ops.ragged([image.permute(1, 2, 0) for image in images], flips=flips, windows=windows)


def reference(crop: torch.Tensor, window: tuple[float, ...], size: tuple[int, int], interpolation: str) -> torch.Tensor:
    """float (3, *size), 0 to 255: torchvision's or, of a window, Pillow's; "area" by the overlaps of pixels."""
    _, height, width = crop.shape
    top, left, h, w = window
    if interpolation == "area":
        return overlaps(height, size[0], top, h) @ crop.float() @ overlaps(width, size[1], left, w).T
    if window == (0, 0, height, width):
        mode = InterpolationMode(interpolation)
        whole = (0, 0, height, width)
        return resized_crop(crop.float(), *whole, size=list(size), interpolation=mode, antialias=True).clamp(0, 255)
    box = (left, top, min(width, left + w), min(height, top + h))
    channels = [Image.fromarray(channel.float().numpy()) for channel in crop]
    resized = [each.resize(size[::-1], Image.Resampling[interpolation.upper()], box) for each in channels]
    return torch.from_numpy(np.stack([np.asarray(each) for each in resized])).clamp(0, 255)


def overlaps(source: int, size: int, start: float, length: float) -> torch.Tensor:
    """(size, source): the share of each output pixel that a source pixel fills."""
    ends, pixels = start + np.arange(size + 1) * length / size, np.arange(source)
    last = np.minimum(ends[1:, None], pixels + 1)
    share = np.clip(last - np.maximum(ends[:-1, None], pixels), 0, None) * size / length
    return torch.from_numpy(share).float()


def check(images: torch.Tensor, sources: list, size: tuple[int, int], interpolation: str = "bilinear") -> None:
    for actual, (image, box, flip) in zip(images, sources, strict=True):
        expected = reference(image, box, size, interpolation)
        expected = horizontal_flip(expected) if flip else expected
        off = ((actual.float() * STD + MEAN) - expected / 255).abs()
        assert off.mean() <= 1 / 255, (box, flip)
        assert off.max() <= 3 / 255, (box, flip)


@pytest.mark.parametrize(
    ("size", "most", "num"), [((1, 1), 9, 50), ((24, 24), 24, 100), ((32, 25), 100, 200), ((32, 32), 4, 50)]
)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "area"])
def test_plain_torch_is_torchvision(size: tuple[int, int], most: int, num: int, interpolation: str) -> None:
    sources, ragged = crops(num, most, seed=size[0] + most)
    images = ops.resize(ragged, size, interpolation=interpolation)
    assert images.is_contiguous(memory_format=torch.channels_last)
    check(images, sources, size, interpolation)


def test_other_dtypes_are_the_same_images_rounded() -> None:
    _, ragged = crops(40, 30, seed=0)
    exact = ops.resize(ragged, 16)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(ops.resize(ragged, 16, dtype=dtype), exact.to(dtype))
    actual = ops.resize(ragged, 16, dtype=torch.uint8)
    assert actual.dtype == torch.uint8
    check_pixels(actual, exact)


def check_pixels(actual: torch.Tensor, normalised: torch.Tensor) -> None:
    assert (actual.float() - 255 * (normalised * STD + MEAN)).abs().max() <= 0.501


IN_INTERPRETER = """
import sys, torch
from imagenet_opt.data.transforms.resize import ImageFormat, RaggedCrops
from imagenet_opt.data.transforms.resize_kernel import resize_kernel
ragged, kinds = torch.load(sys.argv[1])
formats = [ImageFormat(interpolation=name, dtype=dtype) for name, dtype in kinds]
torch.save([resize_kernel(RaggedCrops(*ragged), size=(9, 7), format=format) for format in formats], sys.argv[2])
"""


@pytest.mark.slow
def test_the_kernel_is_torchvision_in_tritons_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    sources, ragged = crops(3, 12, seed=0)  # of one pixel a side, and with a window
    filters, dtypes = ("bilinear", "bicubic", "area"), (torch.uint8, torch.bfloat16, torch.float16)
    kinds = [*((name, torch.float32) for name in filters), *(("bilinear", dtype) for dtype in dtypes)]
    torch.save(([*vars(ragged).values()], kinds), tmp_path / "ragged")
    command = [sys.executable, "-c", IN_INTERPRETER, tmp_path / "ragged", tmp_path / "images"]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "images")
    for images, name in zip(found, filters, strict=False):
        assert images.is_contiguous(memory_format=torch.channels_last)
        check(images, sources, (9, 7), name)
    check_pixels(found[3], found[0])
    for rounded, dtype in zip(found[3:], dtypes, strict=True):
        assert rounded.dtype == dtype
        if dtype.is_floating_point:
            torch.testing.assert_close(rounded.float(), found[0], rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
