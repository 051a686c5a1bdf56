"""imagenet_opt.timm.create_loader beside timm's own."""

import inspect
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.data import AugMixDataset, FastCollateMixup, ImageDataset
from timm.data import create_loader as create_timms
from timm.data.readers.reader_image_in_tar import ReaderImageInTar

from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.timm import TimmLoader, create_loader
from tests.data.conftest import encoded, picture

PAGE = Path(__file__).parents[1] / "docs/timm.md"
SIZE, PLAIN = (3, 40, 40), {"num_workers": 0, "device": torch.device("cpu")}
CLASSES = ("c2", "c10", "c1")  # by letter in another order than by number, as timm sorts
Make = Callable[..., TimmLoader]
pytestmark = [  # timm leaves its files open
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("timm")
    for i in range(23):
        place = folder / CLASSES[i % 3] / f"{i}.jpg"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(encoded(picture(60 + 5 * i, 190 - 5 * i, seed=i), quality=95))
    return folder


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = list[TimmLoader]()

    def make(dataset: Any, **options: Any) -> TimmLoader:
        made.append(create_loader(dataset, **{"input_size": SIZE, "batch_size": 4} | PLAIN | options))
        return made[-1]

    yield make
    for each in made:
        each.loader.close()


def all_of(loader: Any) -> tuple[torch.Tensor, torch.Tensor]:
    batches = list(loader)
    assert len(batches) == len(loader)
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


def check(ours: TimmLoader, timms: Any, std: float = 0.224) -> None:
    """The same labels in the same order, and images that differ by the rounding between two passes of the resize."""
    (images, labels), (expected, known) = all_of(ours), all_of(timms)
    assert torch.equal(labels, known) and labels.dtype == torch.int64
    assert (images.shape, images.dtype) == (expected.shape, expected.dtype)
    assert (images - expected).abs().max() * 255 * std < 4
    assert (images - expected).abs().mean() * 255 * std < 0.2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"interpolation": "bicubic", "crop_pct": 0.95, "mean": (0.5, 0.4, 0.3), "std": (0.25, 0.25, 0.25)},
        {"crop_mode": "squash", "crop_pct": 0.9},
        {"use_prefetcher": False, "input_size": 32},
    ],
)
def test_a_validation_is_that_of_timm(root: Path, make: Make, options: dict[str, Any]) -> None:
    timms = create_timms(ImageDataset(root), **{"input_size": SIZE, "batch_size": 4} | PLAIN | options)
    check(make(ImageDataset(root), **options), timms, options.get("std", [0.224])[0])


def test_tars_class_maps_and_paths_have_the_labels_of_timm(root: Path, make: Make, tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    for name in CLASSES:
        with tarfile.open(tmp_path / f"tars/{name}.tar", "w") as tar:
            tar.add(root / name, ".")
    for name, content in (("one", root), ("nested", tmp_path / "tars")):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            tar.add(content, "val")
    (tmp_path / "map.txt").write_text("c10\nc2\n")
    for dataset in (
        ImageDataset(str(tmp_path / "one.tar")),
        ImageDataset(str(tmp_path / "nested.tar")),
        ImageDataset("", reader=ReaderImageInTar(str(tmp_path / "tars"))),
        ImageDataset(root, class_map=str(tmp_path / "map.txt")),
    ):
        check(make(dataset), create_timms(dataset, SIZE, 4, **PLAIN))
    images, labels = all_of(make(str(root)))
    assert len(images) == 23 and torch.bincount(labels).tolist() == [7, 8, 8]  # by letter: c1, c10, c2


def test_training_without_augmentation_squashes_each_image_as_timm_does(root: Path, make: Make) -> None:
    dataset = ImageDataset(root)
    create_timms(dataset, SIZE, 4, is_training=True, no_aug=True, **PLAIN)  # sets the transform of the dataset
    (batch,) = list(
        make(ImageDataset(root), batch_size=23, is_training=True, no_aug=True, mean=(0, 0, 0), std=(1, 1, 1)).loader
    )
    for index, image in zip(batch.indices.tolist(), batch.images, strict=True):
        assert (255 * image - dataset[index][0]).abs().max() < 1.5


def test_training_goes_through_epochs_of_its_own_order_and_resumes(root: Path, make: Make) -> None:
    """By set_epoch, as in train.py with several processes, and without; with all that its defaults ask for."""
    options = {"is_training": True, "interpolation": "random", "scale": [0.5, 1.0], "ratio": [3.0 / 4.0, 4.0 / 3.0]}
    torch.manual_seed(7)
    train = make(ImageDataset(root), **options)
    first, second = all_of(train), all_of(train)
    assert len(first[0]) == 20 and not torch.equal(first[1], second[1])
    assert len(train.dataset) == 23 and not train.mixup_enabled
    torch.manual_seed(7)
    again = make(ImageDataset(root), **options)
    again.sampler.set_epoch(1)
    images, labels = all_of(again)
    assert torch.equal(images, second[0]) and torch.equal(labels, second[1])


def test_mixing_and_erasing_are_done_by_timm(root: Path, make: Make) -> None:
    collate = FastCollateMixup(mixup_alpha=1.0, num_classes=3, label_smoothing=0.0)
    options = {
        "is_training": True,
        "batch_size": 10,
        "re_prob": 1.0,
        "re_mode": "const",
        "color_jitter": 0,
        "hflip": 0.0,
    }
    train = make(ImageDataset(root), collate_fn=collate, **options)
    for images, targets in train:
        assert (images == 0).all(1).flatten(1).any(1).all()
        assert targets.shape == (10, 3) and torch.allclose(targets.sum(1), torch.ones(10))
    assert train.mixup_enabled and (targets.amax(1) < 1).any()
    train.mixup_enabled = False
    assert all((targets.amax(1) == 1).all() for _, targets in train)


def test_an_argument_that_is_not_honoured_is_named(root: Path, make: Make) -> None:
    train = {"is_training": True}
    for wrong in (
        {"input_size": (3, 40, 32)},
        {"input_size": (1, 40, 40)},
        {"crop_mode": "border"},
        {"crop_border_pixels": 4},
        {"interpolation": "lanczos"},
        {"num_aug_splits": 2},
        {"tf_preprocessing": True},
        {"input_size_choices": [32, 40]},
        {"collate_fn": lambda samples: samples},
        {"img_dtype": torch.float64},
        {"dataset": AugMixDataset(ImageDataset(root))},
        {"colour_jitter": 0.4},
        train | {"vflip": 0.5},
        train | {"train_crop_mode": "rkrr"},
        train | {"ratio": (0.5, 2.0)},
        train | {"color_jitter": (0.1, 0.1, 0.1, 0.1)},
        train | {"grayscale_prob": 0.2},
        train | {"auto_augment": "augmix-m3"},
        train | {"num_aug_repeats": 1.5},
        train | {"re_prob": 5},
        train | {"hflip": 7},
        train | {"scale": (5, 1)},
        {"mean": (1,)},
        {"crop_pct": -1},
        {"dataset": "/nowhere/x"},
        {"dataset": "ftp://x/y"},
    ):
        (name,) = wrong.keys() - train.keys()
        with pytest.raises(ImagenetOptError, match=rf"\b{name.removeprefix('img_')}\b"):
            make(**{"dataset": ImageDataset(root)} | wrong)
    make(ImageDataset(root), num_batches=3, batch_choice_seed=1)  # timm does not read them without a schedule of sizes


def test_the_page_has_each_argument_of_timm() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE.read_text().partition("\n## ")[0], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(
        inspect.signature(create_timms).parameters
    )
