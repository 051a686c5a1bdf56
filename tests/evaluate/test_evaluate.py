"""Accuracy and loss against their formulas, the images that a network sees, and the logit of each class folder, against
timm's lists of ImageNet's variants."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm.data
import torch
from timm.data import ImageNetInfo
from torch import Tensor, nn

from imagenet_opt.data.index.open_index import open_index
from imagenet_opt.data.index.split import Split
from imagenet_opt.errors import CheckpointMismatch, ConfigError
from imagenet_opt.evaluate.evaluate import evaluate
from imagenet_opt.evaluate.network import Network, View, logits_of, view_of
from tests.conftest import loading, write_images

IMAGENET = ImageNetInfo().label_names()
MORE_CLASSES = ["n00000001", *IMAGENET[::-1], "n99999999"]
NUMBERS_BY_NAME = sorted(map(str, range(1000)))  # as folders are sorted: 10 before 2


class Recorder(nn.Module):
    """Logits that depend on the left and right half of an image; records images and logits."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(6, num_classes)
        self.images: list[Tensor] = []
        self.logits: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        halves = torch.cat([half.mean((2, 3)) for half in images.chunk(2, dim=3)], dim=1)
        self.images.append(images)
        self.logits.append(5 * self.head(halves))
        return self.logits[-1]


@pytest.mark.parametrize("num", [5, 6])
def test_the_view_replaces_that_of_the_loader_and_six_classes_have_a_top_5(num: int, tmp_path: Path) -> None:
    index, net = open_index(write_images(tmp_path, num_classes=num, per_class=2), "val", tmp_path), Recorder(num)
    result = evaluate(Network(net, num), index, loading(val_crop_ratio=0.875), View(16, 0.5))
    best = torch.cat(net.logits)[: len(index)].topk(5).indices.numpy()
    assert result.top5 == (None if num == 5 else (best == index.labels[:, None]).any(1).mean())
    again = evaluate(Network(net, num), index, loading(val_crop_ratio=0.5), View(16, 0.5))
    assert result.nll == again.nll != evaluate(Network(net, num), index, loading(), View(16, 0.875)).nll


def test_a_view_follows_the_configuration_or_a_convention() -> None:
    options = loading(val_image_size=200, val_crop_ratio=0.9, interpolation="area")
    assert view_of(options, None, tta=True) == View(200, 0.9, "area", True)
    assert view_of(loading(val_interpolation="bicubic"), None, tta=False).interpolation == "bicubic"
    assert view_of(options, "ffcv", tta=False) == View(256, 0.875, "area", True)
    assert view_of(options, "timm", tta=True) == View(224, 0.95, "bicubic", True)
    with pytest.raises(ConfigError, match="eval=tim"):
        view_of(loading(), "tim", tta=False)


def test_an_unsuitable_size_is_refused(images_root: Path, tmp_path: Path) -> None:
    index = open_index(images_root, "val", tmp_path)
    net = timm.create_model("test_vit", num_classes=3, dynamic_img_size=False).eval()
    with pytest.raises(ConfigError, match=r"96 pixels \(.*data\.val_image_size, eval=\)"):
        evaluate(Network(net, 3), index, loading(batch_size=2), View(96, 0.875, tta=True))


def renamed(root: Path, folder: Path, names: list[str]) -> Split:
    """The validation images of `root` in class folders with other names."""
    for number, file in enumerate(sorted((root / "val").rglob("*.JPEG")), 1):
        target = folder / "val" / names[int(file.parent.name.removeprefix("class"))]
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{number}.JPEG").symlink_to(file)
    return open_index(folder, "val", folder / "cache")


@pytest.mark.parametrize("tta", [False, True])
@pytest.mark.parametrize(
    ("folders", "num", "classes", "columns"),
    [
        (["cat", "dog", "owl"], 3, None, [0, 1, 2]),
        (["cat", "dog", "owl"], 5, ("owl", "ant", "cat", "bee", "dog"), [2, 4, 0]),
        (["4", "0", "2"], 5, None, [0, 2, 4]),  # folders in the order of their names
    ],
)
def test_measures_are_their_formulas(
    folders: list[str], num: int, classes: Any, columns: list[int], tta: bool, images_root: Path, tmp_path: Path
) -> None:
    """Of the logits of the classes; with tta, of the mean logits of image and mirror image."""
    index, net = renamed(images_root, tmp_path, folders), Recorder(num)
    result = evaluate(Network(net, num, classes), index, loading(batch_size=4), View(16, 0.875, tta=tta))
    labels, logits = index.labels.astype(np.int64), net.logits
    if tta:
        assert torch.equal(net.images[0].flip(-1), net.images[1])
        logits = [(a + b) / 2 for a, b in zip(logits[::2], logits[1::2], strict=True)]
    probabilities = torch.cat(logits)[: len(labels), columns].softmax(1).detach().numpy()
    chosen = probabilities.argmax(1)
    assert result.top1 == pytest.approx((chosen == labels).mean())
    assert result.top5 is None
    assert result.nll == pytest.approx(-np.log(probabilities[np.arange(len(labels)), labels]).mean(), rel=1e-5)
    assert result.images == np.bincount(labels, minlength=3).tolist()
    assert result.correct == [int(((chosen == labels) & (labels == label)).sum()) for label in range(3)]


@pytest.mark.parametrize("variant", ["imagenet_a", "imagenet_r"])
def test_folders_of_a_variant_have_timms_indices(variant: str) -> None:
    lists = Path(timm.data.__path__[0]) / "_info"
    synsets = (lists / f"{variant}_synsets.txt").read_text().split()
    indices = [int(number) for number in (lists / f"{variant}_indices.txt").read_text().split()]
    assert logits_of(synsets, IMAGENET, 1000) == indices
    assert len(set(indices)) == 200


@pytest.mark.parametrize(
    ("folders", "names", "num", "expected"),
    [
        (NUMBERS_BY_NAME, IMAGENET, 1000, [int(folder) for folder in NUMBERS_BY_NAME]),
        (["3", "999"], MORE_CLASSES, 1002, [MORE_CLASSES.index(IMAGENET[3]), MORE_CLASSES.index(IMAGENET[999])]),
        (["0", "10", "2"], ["0", "10", "2"], 3, [0, 1, 2]),  # numbers that the network knows as names
        (["cat", "dog"], None, 2, [0, 1]),
        (["cat", "dog"], ["ant", "cat", "cow", "dog"], 9, [1, 3]),
        (["cat", "dog"], None, 3, "3 classes, the validation images have 2"),
        (["cat", "dog"], ["dog", "fish"], 2, "1 of 2 classes .*: cat"),
        (["7", "10"], None, 10, "folder 10 .* 10 classes"),
    ],
)
def test_folders_are_names_or_class_numbers_of_the_network(
    folders: list[str], names: list[str] | None, num: int, expected: list[int] | str
) -> None:
    if isinstance(expected, list):
        assert logits_of(folders, names, num) == expected
    else:
        with pytest.raises(CheckpointMismatch, match=expected):
            logits_of(folders, names, num)
