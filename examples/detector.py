"""The DataLoader of a detector: workers decode, and the device resizes images of any size to one shape.

python examples/detector.py FOLDER_OF_IMAGES
"""

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from imagenet_opt import ops

SIZE = (240, 320)  # height and width of the images that the network gets
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def together(files: list[Path]) -> tuple[ops.RaggedCrops, torch.Tensor]:
    """In a worker: images of their own sizes, and a box of an object in each: left, top, right, bottom in pixels."""
    return ops.ragged([ops.decode(file.read_bytes(), name=str(file)) for file in files]), torch.ones(len(files), 4)


if __name__ == "__main__":
    files = sorted(Path(sys.argv[1]).rglob("*.*"))
    for crops, boxes in DataLoader(
        files, 16, shuffle=True, num_workers=2, collate_fn=together, pin_memory=device.type == "cuda"
    ):
        crops = crops.to(device, non_blocking=True)
        pixels = ops.augment(ops.resize(crops, SIZE, dtype=torch.uint8), ops.ColorJitter((0.4, 0.4, 0.4)))
        images = ops.normalize(pixels)
        scale = torch.stack([SIZE[1] / crops.widths, SIZE[0] / crops.heights], 1).repeat(1, 2)
        print(f"images {tuple(images.shape)}, boxes up to {(boxes.to(device) * scale).max().item():.1f} pixels")
