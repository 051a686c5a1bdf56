"""Milliseconds of what makes and changes the images of a batch of 384 on the device, on the host and in all.

$KEEP/result.json: name -> host_ms, ms; each the mean of ten calls.
"""

from collections.abc import Callable

import numpy as np
import torch

from imagenet_opt.callbacks.mixing import cutmix, mixup
from imagenet_opt.data.batch import resize_ragged
from imagenet_opt.data.transforms.augment import Augmenter, RandomErasing, parse_policy
from imagenet_opt.data.transforms.augment_ops import augment, erase
from imagenet_opt.data.transforms.resize import ImageFormat, RaggedCrops
from suites.gpu.ceiling import DEVICE, ON_GPU, SIDE, images_of, keep, milliseconds

NUM, NUM_CALLS = (384, 10) if ON_GPU else (8, 1)


def timed(call: Callable[[], object]) -> dict[str, float]:
    milliseconds(call, 3)
    host, device = milliseconds(call, NUM_CALLS)
    return {"host_ms": round(host, 3), "ms": round(device, 3)}


def crops() -> list[torch.Tensor]:
    """Pixels, heights, widths, offsets and flips of RandomResizedCrop's defaults in images of 483 x 412 pixels."""
    draw = np.random.default_rng(0)
    area, ratio = 483 * 412 * draw.uniform(0.08, 1, NUM), np.exp(draw.uniform(np.log(3 / 4), np.log(4 / 3), NUM))
    heights, widths = (np.sqrt(one).astype(np.int32).clip(8) for one in (area / ratio, area * ratio))
    sizes = 3 * heights.astype(np.int64) * widths
    pixels = draw.integers(0, 256, int(sizes.sum()), dtype=np.uint8)
    windows = np.stack([0 * heights, 0 * widths, heights, widths], axis=1).astype(np.float32)
    ragged = (pixels, heights, widths, sizes.cumsum() - sizes, draw.random(NUM) < 0.5, windows)
    return [torch.from_numpy(one).to(DEVICE) for one in ragged]


def main() -> None:
    images, found, rows = images_of(NUM), {}, np.arange(NUM)
    pixels = torch.randint(0, 256, images.shape, dtype=torch.uint8, device=DEVICE)
    pixels = pixels.to(memory_format=torch.channels_last)
    ragged = RaggedCrops(*crops())
    for how in ("bilinear", "bicubic", "area"):
        format = ImageFormat(interpolation=how, dtype=torch.bfloat16)
        found[f"resize, {how}"] = timed(lambda format=format: resize_ragged(ragged, size=SIDE, format=format))
    policies = {name: parse_policy(name) for name in ("rand-m7-mstd0.5-inc1", "trivialaugment")}
    for name, policy in policies.items():
        layers = Augmenter(seed=0, policies=(policy,), erasing=None).draw(rows, rows * 0, SIDE).layers
        found[name] = timed(lambda layers=layers: augment(pixels, layers))
    for share in (0.1, 0.25, 1.0):
        boxes = (
            Augmenter(seed=0, policies=(), erasing=RandomErasing(probability=share)).draw(rows, rows * 0, SIDE).erased
        )
        found[f"random_erasing {share}"] = timed(lambda boxes=boxes: erase(images, boxes))
    found["mixup"] = timed(lambda: mixup(images, 0.3))
    found["cutmix"] = timed(lambda: cutmix(images, 0.3, (0.4, 0.6)))
    keep(found)
    print(found)


if __name__ == "__main__":
    main()
