"""CIFAR-10 as short scripts train it, from a folder of JPEGs: `cifar10_reference.py FOLDER [EPOCHS]`.

ResNet-18 for 32 pixels; padding by 4 and cropping, flips, cutout of 12 pixels; SGD with a triangle of learning rates
and weight decay on all parameters; batches of 512. All images are on the device; there is no loader. Such scripts
reach about 94 % in 32 epochs on the published pixels: what is missing here, the JPEGs cost. $KEEP/result.json.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from imagenet_opt.model.network import build_network
from suites.gpu.ceiling import DEVICE, ON_GPU, captured, keep, mixed

PAD, CUTOUT, BATCH, MOST_LR, DECAY = 4, 12, 512, 0.4, 5e-4
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def read(folder: Path, num_per_class: int | None) -> tuple[Tensor, Tensor]:
    """Normalised images (N, 3, 32, 32) and labels (N,) on the device."""
    files = [
        (file, label)
        for label, one in enumerate(sorted(folder.iterdir()))
        for file in sorted(one.iterdir())[:num_per_class]
    ]
    pixels = torch.from_numpy(np.stack([np.asarray(Image.open(file).convert("RGB")) for file, _ in files])).to(DEVICE)
    mean, deviation = (torch.tensor(one, device=DEVICE) for one in (MEAN, DEVIATION))
    images = ((pixels.float() / 255 - mean) / deviation).permute(0, 3, 1, 2).to(torch.bfloat16)
    return images, torch.tensor([label for _, label in files], device=DEVICE)


def changed(images: Tensor) -> Tensor:
    """Shifted by up to PAD pixels, flipped half of the time, a square of CUTOUT pixels set to zero."""
    num, side = len(images), images.shape[-1]
    across = torch.arange(side, device=DEVICE)
    flipped = torch.where(torch.rand(num, 1, device=DEVICE) < 0.5, across, side - 1 - across)
    rows, columns = (torch.randint(2 * PAD + 1, (num, 1), device=DEVICE) for _ in range(2))
    padded = pad(images, [PAD] * 4)
    which = torch.arange(num, device=DEVICE)[:, None, None]
    shifted = padded.permute(0, 2, 3, 1)[which, (rows + across)[:, :, None], (columns + flipped)[:, None, :]]
    tops, lefts = (torch.randint(1 - CUTOUT // 2, side - CUTOUT // 2, (num, 1), device=DEVICE) for _ in range(2))
    high, wide = ((across >= first) & (across < first + CUTOUT) for first in (tops, lefts))
    return shifted.masked_fill((high[:, :, None] & wide[:, None, :])[..., None], 0).permute(0, 3, 1, 2)


def accuracy(net: torch.nn.Module, images: Tensor, labels: Tensor) -> float:
    """Top-1 with mirrored images added."""
    net.eval()
    with torch.inference_mode(), mixed():
        parts = [net(part) + net(part.flip(-1)) for part in images.split(1000)]
    net.train()
    return float((torch.cat(parts).argmax(1) == labels).float().mean())


def main(folder: Path, epochs: int) -> None:
    began = time.perf_counter()
    few = None if ON_GPU else 10
    (images, labels), val = read(folder / "train", few), read(folder / "val", few)
    batch = min(BATCH, len(images) // 2)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    net = build_network("resnet18" if ON_GPU else "resnet10t", num_classes=10, small_stem=ON_GPU)
    net = net.to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=MOST_LR, momentum=0.9, nesterov=True, weight_decay=DECAY)
    steps = epochs * (len(images) // batch)
    triangle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, MOST_LR, total_steps=steps + 1, pct_start=0.2, anneal_strategy="linear", cycle_momentum=False
    )
    graph = captured(net, changed(images[:batch]))
    ready = time.perf_counter()
    for _ in range(epochs):
        for part in torch.randperm(len(images), device=DEVICE).split(batch)[: len(images) // batch]:
            with mixed():
                logits = net(changed(images[part]))
            cross_entropy(logits.float(), labels[part], label_smoothing=0.1).backward()
            optimizer.step()
            optimizer.zero_grad()
            triangle.step()
    if graph is not None:
        graph.release()
    found = {"val/acc1": accuracy(net, *val), "epochs": epochs, "train_seconds": time.perf_counter() - ready}
    found["ready_seconds"] = ready - began
    keep(found)
    print(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 32 if ON_GPU else 1)
