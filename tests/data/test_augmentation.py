"""Augmented training batches: the same in any batch, and only in training."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from lightning.pytorch import Callback, LightningModule, Trainer
from torchvision.transforms.v2 import functional as F

from imagenet_opt.config.optional_callbacks import leave_out_idle
from imagenet_opt.data.batch import Batch
from imagenet_opt.data.loader import RankInfo, eval_loader, open_index
from imagenet_opt.data.randomness import key_of, uniform
from imagenet_opt.data.transforms.augment_ops import Operation
from imagenet_opt.data.transforms.augment_policy import TrivialAugment
from imagenet_opt.training.build_run import build_run
from tests.data.conftest import AUGMENTED, CPU, EACH_ALONE, MakeLoader, assert_equal, batches, by_index, loading, pixels

TINY = (
    "model.name=test_resnet", "data.image_size=32", "data.batch_size=6", "data.num_workers=0", "logger=[csv]",
    "trainer.accelerator=cpu", "trainer.devices=1", "trainer.max_steps=2", "trainer.limit_val_batches=0",
    "trainer.num_sanity_val_steps=0", "~callbacks.checkpoint",
)  # fmt: skip


@pytest.mark.parametrize("resize_on", ["worker", "device"])
def test_augmentation_depends_on_the_epoch_and_not_on_the_batch(
    images_root: Path, loader: MakeLoader, resize_on: str
) -> None:
    options = EACH_ALONE | {"resize_on": resize_on}
    small, large = (loader(images_root, batch_size=size, **options) for size in (3, 13))
    images, same, later = by_index(batches(small)), by_index(batches(large)), by_index(batches(large, epoch=2))
    assert images.keys() == same.keys() and all(torch.equal(images[i], same[i]) for i in images)
    assert not any(torch.equal(images[i], later[i]) for i in images)


def test_an_augmented_image_is_torchvisions_of_the_plain_image(images_root: Path, loader: MakeLoader) -> None:
    """Operations that torchvision applies to a whole image without an argument."""
    plain = by_index(batches(loader(images_root), epoch=5))
    changed = by_index(batches(loader(images_root, augment="trivialaugment"), epoch=5))
    indices = np.array(sorted(plain))
    (layer,) = TrivialAugment().layers(uniform(key_of(3, 5, 1), indices, 3), 32)
    references = {
        Operation.NOTHING: torch.clone,
        Operation.EQUALIZE: F.equalize,
        Operation.AUTOCONTRAST: F.autocontrast,
    }
    num_checked = 0
    for index, operation in zip(indices.tolist(), layer.operations, strict=True):
        if operation in references:
            assert torch.equal(raw(changed[index]), references[operation](raw(plain[index]))), operation
            num_checked += 1
    assert num_checked >= 3


def raw(image: torch.Tensor) -> torch.Tensor:
    return pixels(SimpleNamespace(images=image[None])).round().clamp(0, 255).to(torch.uint8)[0]


def test_random_shift_is_padding_and_cropping(images_root: Path, loader: MakeLoader) -> None:
    """Bit by bit, at offsets that (seed, pass, index) determine, whatever the batch."""
    color, padding = (102, 51, 153), 4
    options = {"mean": [level / 255 for level in color], "std": (1 / 255,) * 3}
    plain = by_index(batches(loader(images_root, **options), epoch=5))
    moved = by_index(batches(loader(images_root, random_shift=padding, batch_size=5, **options), epoch=5))

    def padded(image: torch.Tensor) -> torch.Tensor:
        channels = zip((image + mean).round().to(torch.uint8), color, strict=True)
        return torch.stack([torch.nn.functional.pad(each, (padding,) * 4, value=level) for each, level in channels])

    mean, offsets = torch.tensor(color).view(3, 1, 1), set()
    for index in plain.keys() & moved.keys():
        draws = uniform(key_of(3, 5, 4), np.array([index]), 2)[0]  # seed, pass, stream
        left, top = (int(move) for move in 2 * padding - np.floor(draws * (2 * padding + 1)))
        expected = padded(plain[index])[:, top : top + 32, left : left + 32]
        assert torch.equal((moved[index] + mean).round().to(torch.uint8), expected), (left, top)
        offsets.add((left, top))
    assert len(offsets) > len(plain) / 2


@pytest.mark.parametrize("resize_on", ["worker", "device"])
@pytest.mark.parametrize("key", ["random_shift", "augment", "color_jitter", "random_erasing"])
def test_each_key_changes_training_images_alone(
    images_root: Path, loader: MakeLoader, tmp_path: Path, key: str, resize_on: str
) -> None:
    changed = {"resize_on": resize_on, key: AUGMENTED[key]}
    plain, augmented = (batches(loader(images_root, **{"resize_on": resize_on} | more)) for more in ({}, changed))
    pairs = zip(by_index(plain).values(), by_index(augmented).values(), strict=True)
    assert np.mean([not torch.equal(one, other) for one, other in pairs]) > 0.3
    assert augmented[0].images.is_contiguous(memory_format=torch.channels_last) == (resize_on == "device")
    index = open_index(images_root, "val", tmp_path)
    loaders = [
        eval_loader(index, loading(**options), RankInfo(device=CPU)) for options in ({"resize_on": resize_on}, changed)
    ]
    assert_equal(*(batches(made, epoch=0) for made in loaders))


class KeepImages(Callback):
    """The images of the first training steps, before other callbacks."""

    def __init__(self) -> None:
        self.images: list[torch.Tensor] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        self.images.append(batch.images.clone())


def test_an_experiment_can_augment_the_images_of_a_run(images_root: Path, own_conf: Path, tmp_path: Path) -> None:
    (own_conf / "experiment/augmented.yaml").write_text("# @package _global_\ndata:\n  augment: trivialaugment\n")

    def images_of(*overrides: str) -> list[torch.Tensor]:
        args = [f"data.root={images_root}", f"data.cache_dir={tmp_path}", f"run_folder={tmp_path}", *TINY, *overrides]
        with initialize_config_dir(str(own_conf), version_base="1.3"):
            config = compose("train", ["~hydra", *args])
        leave_out_idle(config, args)
        run, images = build_run(config), KeepImages()
        run.trainer.callbacks.insert(0, images)
        run.trainer.fit(run.model, datamodule=run.data)
        return images.images

    plain, augmented = images_of(), images_of("experiment=augmented")
    assert len(plain) == len(augmented) == 2
    assert not any(torch.equal(one, other) for one, other in zip(plain, augmented, strict=True))


@pytest.mark.parametrize("size", [3, 5])
def test_tiny_images_can_be_augmented(images_root: Path, loader: MakeLoader, size: int) -> None:
    made = loader(images_root, image_size=size, **AUGMENTED | {"augment": "rand-m9-n6-p1-inc1", "random_shift": 2})
    assert all(batch.images.isfinite().all() for batch in batches(made))
