"""imagenet_opt.loader in a loop of the user's own."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import distributed

from imagenet_opt.errors import ClassMismatch, ConfigError, ImagenetOptError
from tests.data.conftest import MakeLoader, by_index


@pytest.mark.parametrize("resize_on", ["worker", "device"])
@pytest.mark.parametrize("more", [{}, {"augment": "trivialaugment", "random_erasing": 1.0}])
def test_uint8_is_not_normalised(images_root: Path, loader: MakeLoader, resize_on: str, more: dict[str, Any]) -> None:
    options = {"resize_on": resize_on, "num_workers": 1, **more}
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))
    pixels = list(loader(images_root, dtype=torch.uint8, **options))  # kept while workers make later batches
    known = by_index(list(loader(images_root, **options)))
    for i, image in by_index(pixels).items():
        assert image.dtype == torch.uint8
        assert ((known[i] * std + mean) * 255 - image).abs().max() <= 0.51


@pytest.mark.parametrize(("world_size", "batch_size", "pad"), [(1, 18, False), (2, 6, True), (4, 50, True)])
def test_validation_shows_every_image_once(
    images_root: Path, tmp_path: Path, loader: MakeLoader, world_size: int, batch_size: int, pad: bool
) -> None:
    root, damaged = shutil.copytree(images_root, tmp_path / "data"), 7
    options = {"split": "val", "batch_size": batch_size, "world_size": world_size, "pad": pad, "num_workers": 2}
    made = [loader(root, rank=rank, max_bad_fraction=0.1, **options) for rank in range(world_size)]
    Path(made[0].path(damaged)).write_bytes(b"")
    found = [list(each) for each in made]
    batches = [batch for own in found for batch in own]
    assert {len(own) for own in found} == {len(made[0])}
    assert sorted(int(i) for batch in batches for i in batch.indices[batch.valid]) == sorted({*range(39)} - {damaged})
    if pad:
        assert {len(batch) for batch in batches} == {batch_size}
    else:
        assert all(batch.valid.all() for batch in batches)
        assert sum(len(images) for images, _ in batches) == sum(len(labels) for _, labels in batches) == 38


def test_chosen_images_have_the_given_targets(images_root: Path, loader: MakeLoader) -> None:
    whole, rows = loader(images_root, split="val"), [38, 0, 20, 0]
    images, targets = by_index(list(whole)), np.random.default_rng(0).random((39, 2))
    ((chosen, labels),) = loader(images_root, split="val", indices=rows, targets=targets)
    assert torch.equal(chosen, torch.stack([images[row] for row in rows]))
    assert labels.dtype == torch.float32 and labels.numpy() == pytest.approx(targets[rows])
    numbers = loader(images_root, indices=np.arange(39) >= 26, targets=np.arange(39), batch_size=13)
    ((_, labels),) = numbers
    assert labels.dtype == torch.int64 and sorted(labels.tolist()) == [*range(26, 39)]
    assert whole.labels.tolist() == [0] * 13 + [1] * 13 + [2] * 13 and whole.class_to_idx["class2"] == 2


def test_validation_has_the_class_numbers_of_training(
    images_root: Path, tmp_path: Path, loader: MakeLoader, caplog: pytest.LogCaptureFixture
) -> None:
    root = shutil.copytree(images_root, tmp_path / "data")
    shutil.rmtree(root / "val/class0")
    made = loader(root, split="val")
    assert made.class_to_idx == {"class0": 0, "class1": 1, "class2": 2} and {*made.labels} == {1, 2}
    assert "1 of 3 classes" in caplog.text and "data.val_folder): class0" in caplog.text
    shutil.rmtree(root / "train/class1")
    with pytest.raises(ClassMismatch, match=r"1 classes .* does not have: class1; .*split=.*targets="):
        loader(root, split="val")


def test_processes_are_found_and_share_images_and_cpus(
    images_root: Path, tmp_path: Path, loader: MakeLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    for rank in range(2):
        for name, value in {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 4}.items():
            monkeypatch.setenv(name, str(value))
        with loader(images_root, batch_size=9, num_workers="auto") as made:
            assert f"2 workers, rank {rank} of 2, cpu" in repr(made)
            seen += [int(i) for batch in made for i in batch.indices]
    assert len(set(seen)) == len(seen) == 36
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match=r"world_size=2, and .* has 1 processes"):
            next(iter(made))
        assert "39 images, 3 classes, 4 batches of 9, 0 workers, cpu" in repr(loader(images_root, batch_size=9))
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": torch.int64}, "dtype=torch.int64"),
        ({"rank": 2, "world_size": 2}, "rank=2, world_size=2"),
        ({"rank": "0"}, "rank='0'"),
        ({"device": "gpu"}, "device=gpu: torch can use cpu"),
        ({"batchsize": 3}, "batchsize: did you mean batch_size"),
        ({"transform": None}, "transform: augment="),
        ({"shuffle": True}, "shuffle=True: .* leave shuffle out"),
        ({"split": "."}, r"split=\.: .* training=True"),
        ({"indices": [39]}, "indices= .* 0 to 38"),
        ({"weights": [0] * 39}, "weights="),
        ({"weights": ["a"] * 39}, "weights="),
        ({"targets": [[1], [1, 2]]}, "targets="),
        ({"targets": [float("nan")] * 39}, "targets="),
        ({"pad": True}, "pad= is for validation"),
        ({"root": "/nowhere"}, r"no folder /nowhere \(root=\)"),
        ({"root": "ftp://x/y"}, r"ftp://x/y \(root=\)"),
        ({"split": "train2"}, r"no train2/ .* \(split=\)"),
        ({"batch_size": "many"}, "^batch_size=many must be"),
        ({"batch_size": True}, "^batch_size=True must be a valid integer"),
        ({"batch_size": "auto"}, r"auto is for train\.py"),
        ({"batch_size": 99}, r"set batch_size=39"),
        ({"batch_size": 32, "shuffle": "block", "world_size": 2, "rank": 0}, r"set batch_size=16 or less"),
        ({"batch_size": 7, "shuffle": "block"}, r"^batch_size=7 .*shuffle=global"),
        ({"global_batch_size": 9, "world_size": 2, "rank": 0}, "^global_batch_size=9 cannot be shared evenly by 2"),
        ({"samples_per_epoch": 40}, "^samples_per_epoch=40"),
        ({"seed": None}, "^seed=None must be a valid integer"),
        ({"num_workers": -1}, "^num_workers=-1 must be .* 0 or 'auto'"),
        ({"random_shift": 64, "image_size": 64}, r"^random_shift=64 moves images of 64 pixels \(image_size"),
        ({"mean": (1,)}, r"^mean=\(1,\) .* 3 numbers$"),
        ({"mean": (float("nan"), 0, 0)}, r"^mean=\(nan, 0, 0\) must be a finite number"),
        ({"read_timeout": float("inf")}, "^read_timeout=inf must be a finite number"),
        ({"crop_scale": (0.5, 0.1)}, r"^crop_scale=\(0\.5, 0\.1\) must begin with the smaller"),
        ({"repeated_augmentation": 3, "shuffle": "block"}, "does not work with shuffle=block; set"),
        ({"repeated_augmentation": 3, "samples_per_epoch": 9}, "does not work with samples_per_epoch=; set"),
        ({"weights": [1] * 39, "shuffle": "block", "batch_size": 16}, "shuffle=global"),
        *(({"augment": text}, f"^augment={text} must be null") for text in ("randm7", "rand-p1.5", "rand-m99", "")),
    ],
)
def test_mistakes_name_their_option(images_root: Path, loader: MakeLoader, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ImagenetOptError, match=words):
        loader(**{"root": images_root} | options)
