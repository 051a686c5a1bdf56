"""Trains CIFAR-10's usual recipe in plain PyTorch on the JPEGs of experiment=cifar10: what do they cost against pixels?

    python tests/gpu/cifar_reference.py CIFAR10 [--epochs 40] [--seeds 1]

The JPEGs have half the colour resolution. KellerJordan's and FFCV's scripts reach 94 to 95 % on the raw pixels with
this recipe: ResNet-18 with a 3x3 stem and without pooling; mirror images, padding by 4 pixels and crop, a square of 12
pixels erased; SGD with Nesterov's momentum, a learning rate of 0.2 as a triangle with its peak after a fifth of the
run, weight decay 5e-4. All images are decoded once and stay on the device as uint8. The accuracy, of the mean logits of
image and mirror image, goes to $KEEP/result.json.
"""

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torchvision.models import resnet18

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MEAN, STD, PADDING, CUTOUT = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7), 4, 12


def read(folder: Path, most: int | None) -> tuple[Tensor, Tensor]:
    """Pixels, uint8 (N, 3, 32, 32), and labels, int64 (N,), of `most` images of each class."""
    classes = [sorted(each.iterdir())[:most] for each in sorted(folder.iterdir())]
    files = [file for each in classes for file in each]
    with ThreadPoolExecutor(16) as threads:
        images = list(threads.map(lambda file: np.asarray(Image.open(file)), files))
    labels = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(each) for each in classes]))
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).to(DEVICE), labels.to(DEVICE)


def normalized(pixels: Tensor) -> Tensor:
    mean, std = (torch.tensor(each, device=DEVICE).view(1, 3, 1, 1) for each in (MEAN, STD))
    return ((pixels - mean) / std).contiguous(memory_format=torch.channels_last)


def augmented(images: Tensor) -> Tensor:
    """Mirrored, shifted and with a square of zeros, each image by numbers of its own."""
    num, _, side, _ = images.shape
    images = torch.where(torch.rand(num, 1, 1, 1, device=DEVICE) < 0.5, images.flip(-1), images)
    places = torch.arange(side, device=DEVICE)
    rows, columns = (torch.randint(2 * PADDING + 1, (num, 1), device=DEVICE) + places for _ in range(2))
    padded, numbers = pad(images, (PADDING,) * 4), torch.arange(num, device=DEVICE)[:, None, None]
    images = padded.permute(0, 2, 3, 1)[numbers, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    inside = [(places - torch.randint(side, (num, 1), device=DEVICE) + CUTOUT // 2) for _ in range(2)]
    y, x = ((each >= 0) & (each < CUTOUT) for each in inside)
    return images.masked_fill(y[:, None, :, None] & x[:, None, None, :], 0)


def network() -> nn.Module:
    net = resnet18(num_classes=10)
    net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return net.to(device=DEVICE, memory_format=torch.channels_last)  # type: ignore[no-any-return]


def trained(pixels: Tensor, labels: Tensor, *, epochs: int, batch: int) -> tuple[nn.Module, float]:
    """The network, and the training accuracy of the last epoch."""
    net, steps = network(), epochs * (len(pixels) // batch)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, nesterov=True, weight_decay=5e-4)
    rise = max(1, steps // 5)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, (steps - step) / max(1, steps - rise))
    )
    hits = torch.zeros((), device=DEVICE)
    for _ in range(epochs):
        order = torch.randperm(len(pixels), device=DEVICE)
        hits.zero_()
        for start, end in pairwise(range(0, len(order) + 1, batch)):
            chosen = order[start:end]
            with torch.autocast(DEVICE.type, torch.bfloat16):
                logits = net(augmented(normalized(pixels[chosen])))
            cross_entropy(logits.float(), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            hits += (logits.argmax(1) == labels[chosen]).sum()
    return net, hits.item() / (len(pixels) // batch * batch)


@torch.inference_mode()
def accuracy(net: nn.Module, pixels: Tensor, labels: Tensor) -> float:
    net.eval()
    hits = 0
    for some, right in zip(pixels.split(1000), labels.split(1000), strict=True):
        images = normalized(some)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            hits += int(((net(images).float() + net(images.flip(-1)).float()).argmax(1) == right).sum())
    return hits / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cifar", type=Path, help="folder with train/CLASS and val/CLASS")
    for name, default in (("epochs", 40), ("batch", 500), ("most", None), ("seeds", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    train, val = (read(options.cifar / split, options.most) for split in ("train", "val"))
    runs: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        began = time.perf_counter()
        net, training = trained(*train, epochs=options.epochs, batch=options.batch)
        seconds = round(time.perf_counter() - began, 1)
        runs.append({"seed": seed, "val": accuracy(net, *val), "train": training, "seconds": seconds})
        print(json.dumps(runs[-1]), flush=True)
        result = {"epochs": options.epochs, "batch": options.batch, "device": DEVICE.type, "runs": runs}
        (Path(os.environ.get("KEEP", ".")) / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
