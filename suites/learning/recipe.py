"""What both trainers of `beside_timm.py` are told: one recipe, and one set of images."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

CROP_SCALE = (0.7, 1.0)
SMOOTHING = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
LR_PER_256 = 0.2


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """SGD with Nesterov's momentum, a warmup and half a cosine by step, random crops and flips, smoothed labels.

    model: a name of timm. image_size: pixels of a side, of training and validation. warmup: epochs.
    """

    model: str = "resnet10t"
    image_size: int = 32
    batch_size: int = 128
    epochs: int = 8
    warmup: int = 1
    workers: int = 1

    @property
    def lr(self) -> float:
        """The highest learning rate."""
        return LR_PER_256 * self.batch_size / 256


class Learned(NamedTuple):
    """What one run reached: top-1 in per cent of the validation images, and training images per second after the first
    step."""

    top1: float
    images_per_second: float


def link_images(source: Path, target: Path, *, num_train: int) -> int:
    """Make folders of links to all validation images and the first `num_train` training images of `source`, equally
    many of each class. Returns the number of classes."""
    classes = sorted(folder.name for folder in (source / "train").iterdir() if folder.is_dir())
    for split in ("train", "val"):
        for name in classes:
            files = sorted((source / split / name).iterdir())
            (target / split / name).mkdir(parents=True)
            for file in files[: num_train // len(classes)] if split == "train" else files:
                (target / split / name / file.name).symlink_to(file.resolve())
    return len(classes)
