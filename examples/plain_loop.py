"""The loader in a plain PyTorch loop: python examples/plain_loop.py [DATA_FOLDER]

DATA_FOLDER has train/<class>/*.jpg and val/<class>/*.jpg; without it, the images of the demo are used. A loop that is
stopped continues at the next batch after its last checkpoint, runs/plain_loop.pt in the folder where you start it, when
you start it there again.
"""

import os
import sys
from pathlib import Path
from typing import Any

import timm
import torch

import imagenet_opt
from imagenet_opt.data.datamodule import demo_folder
from imagenet_opt.data.index.index_cache import cache_folder
from imagenet_opt.data.prefetcher import DevicePrefetcher

EPOCHS = 2
SAVE_EVERY = 10
CHECKPOINT = Path("runs/plain_loop.pt")


def main() -> None:
    root = Path(sys.argv[1]) if sys.argv[1:] else demo_folder(cache_folder(None), 2000, 400)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = {"image_size": 48, "batch_size": 50, "crop_scale": (0.35, 1.0)}
    train = imagenet_opt.loader(root, device=device, **size)
    val = imagenet_opt.loader(root, split="val", device=device, **size)
    net = timm.create_model("resnet10t", num_classes=len(train.classes)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    stateful = {"net": net, "optimizer": optimizer, "loader": train}
    if CHECKPOINT.exists():
        states = torch.load(CHECKPOINT, map_location=device, weights_only=True)
        for name, part in stateful.items():
            part.load_state_dict(states[name])

    for epoch in range(train.epoch, EPOCHS):
        net.train()
        for batch in train:
            loss = torch.nn.functional.cross_entropy(net(batch.images), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if batch.key.step % SAVE_EVERY == SAVE_EVERY - 1:
                save({name: part.state_dict() for name, part in stateful.items()})
        print(f"epoch {epoch}: accuracy {100 * accuracy(net, val):.1f} %")
    CHECKPOINT.unlink(missing_ok=True)
    train.close()
    val.close()


def save(states: dict[str, Any]) -> None:
    CHECKPOINT.parent.mkdir(exist_ok=True)
    torch.save(states, new := CHECKPOINT.with_suffix(".new"))
    os.replace(new, CHECKPOINT)


@torch.inference_mode()
def accuracy(net: torch.nn.Module, val: DevicePrefetcher) -> float:
    net.eval()
    correct = num = 0
    for images, labels in val:
        correct += int((net(images).argmax(1) == labels).sum())
        num += len(labels)
    return correct / num


if __name__ == "__main__":
    main()
