"""Evaluation on images of some of the network's classes, and by ReaL labels, against torch and timm."""

import json
from pathlib import Path

import pytest
import torch
from timm.data import RealLabelsImagenet
from torch import Tensor
from torch.nn.functional import cross_entropy

from imagenet_opt.data.index.folder_index import FileIndex, open_split
from imagenet_opt.errors import CheckpointMismatch, ConfigError, DataError
from imagenet_opt.evaluate.evaluate import evaluate
from imagenet_opt.evaluate.network import Network
from imagenet_opt.evaluate.real_labels import read_real_labels
from imagenet_opt.evaluate.result import Result, tables
from tests.conftest import loading
from tests.evaluate.test_evaluate import VIEW, Recorder


def renamed(root: Path, folder: Path, names: list[str]) -> FileIndex:
    """The validation images of `root` in class folders with other names, with the file names of ImageNet."""
    for number, file in enumerate(sorted((root / "val").rglob("*.JPEG")), 1):
        target = folder / "val" / names[int(file.parent.name.removeprefix("class"))]
        target.mkdir(parents=True, exist_ok=True)
        (target / f"ILSVRC2012_val_{number:08d}.JPEG").symlink_to(file)
    return open_split(folder, "val", folder / "cache")


def evaluated(index: FileIndex, net: Recorder, **options: object) -> tuple[Result, Tensor]:
    """The result, and all logits of the network."""
    real_labels = options.pop("real_labels", None)
    network = Network(net, net.head.out_features, **options)
    result = evaluate(network, index, loading(batch_size=4), VIEW, real_labels=real_labels)
    return result, torch.cat(net.logits)[: len(index)]


@pytest.mark.parametrize(
    ("folders", "options", "columns"),
    [
        (["cat", "dog", "owl"], {"classes": ("owl", "ant", "cat", "bee", "dog")}, [2, 4, 0]),
        (["4", "0", "2"], {}, [0, 2, 4]),  # folders in the order of their names
    ],
)
def test_only_the_logits_of_the_classes_count(
    folders: list[str], options: dict, columns: list[int], images_root: Path, tmp_path: Path
) -> None:
    index = renamed(images_root, tmp_path, folders)
    result, logits = evaluated(index, Recorder(5), **options)
    labels, logits = torch.from_numpy(index.labels).long(), logits[:, columns]
    hits = logits.argmax(1) == labels
    assert result.top1 == pytest.approx(hits.double().mean().item())
    assert result.nll == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-5)
    assert result.correct == [int(hits[labels == label].sum()) for label in range(3)]
    title = tables(result, index.classes, "net", VIEW, by_class=False)[0].title
    assert title == "net, 16 px bilinear, crop 0.875, 32-true, logits restricted to 3 of 5 classes"


def test_accuracy_by_real_labels_is_timms(images_root: Path, tmp_path: Path) -> None:
    index, net = renamed(images_root, tmp_path, ["7", "20", "100"]), Recorder(1000)
    real = [[number % 3 * 40 + 20, 100][: number % 4] for number in range(len(index))]  # some lists are empty
    file, names = tmp_path / "real.json", [f"ILSVRC2012_val_{number + 1:08d}.JPEG" for number in range(50_000)]
    file.write_text(json.dumps(real + [[]] * (50_000 - len(index))))
    result, logits = evaluated(index, net, real_labels=read_real_labels(file))
    restricted = torch.full_like(logits, -torch.inf)
    restricted[:, [7, 20, 100]] = logits[:, [7, 20, 100]]
    theirs = RealLabelsImagenet([*map(Path, map(index.path, range(len(index)))), *names[len(index) :]], str(file), (1,))
    theirs.add_result(restricted)
    assert result.real_images == sum(map(bool, real)) < len(index)
    assert 0 < result.real_top1 < 1
    assert 100 * result.real_top1 == pytest.approx(theirs.get_accuracy(1))
    rows = {row[0]: row for row in tables(result, index.classes, "net", VIEW, by_class=False)[0].rows}
    assert rows["top-1 accuracy by ReaL labels"][1] == 100 * result.real_top1
    assert rows["top-1 accuracy by ReaL labels"][2].startswith(f"% of {result.real_images} images, 95 % interval ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("[[1], [", "cannot be read"),
        (json.dumps([[1]] * 49_999), "holds 49,999 entries"),
        (json.dumps({"1": [1]}), "holds 1 entries"),
        (json.dumps([[1]] * 49_999 + [[1000]]), r"entry 50000 is \[1000\]"),
        (json.dumps([3] * 50_000), "entry 1 is 3"),
    ],
)
def test_another_file_than_real_json_is_refused(content: str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "real.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=rf"--real-labels \S+real.json:? {words}"):
        read_real_labels(file)


def test_real_labels_need_the_names_and_the_classes_of_imagenet(images_root: Path, tmp_path: Path) -> None:
    index = open_split(images_root, "val", tmp_path)
    names = tuple(f"class{number}" for number in range(1000))
    with pytest.raises(DataError, match="--real-labels"):
        evaluated(index, Recorder(1000), classes=names, real_labels=[[]] * 50_000)
    index = renamed(images_root, tmp_path, ["7", "8", "9"])
    with pytest.raises(CheckpointMismatch, match=r"--real-labels.* has 12"):
        evaluated(index, Recorder(12), real_labels=[[]] * 50_000)
