"""The check command on data sets with one fault each, and with a network that was trained on such images."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from imagenet_opt.check.files import judge_decoding
from imagenet_opt.data.index.folder_index import scan_split
from imagenet_opt.data.loader import RankInfo, train_loader
from imagenet_opt.model.network import build_network
from imagenet_opt.pack import pack
from imagenet_opt.pack.image import PackOptions
from tests.cli.conftest import Check, save
from tests.conftest import loading, stating, write_images
from tests.object_server import upload


def copies(source: Path, *targets: Path) -> None:
    for target in targets:
        shutil.copy(source, target)


def test_duplicates_are_found_between_and_within_splits(check: Check, root: Path) -> None:
    copies(root / "train/class0/image001.JPEG", root / "val/class0/image007.JPEG")
    copies(root / "val/class1/image003.JPEG", root / "val/class2/image004.JPEG", root / "val/class1/again.JPEG")
    status, verdicts, _ = check()
    assert status == 1  # more than one in a hundred
    assert verdicts["val in train"]["details"] == [
        f"{root}/val/class0/image007.JPEG = {root}/train/class0/image001.JPEG"
    ]
    pairs = [line.replace(f"{root}/val/", "") for line in verdicts["twice in val"]["details"]]
    assert sorted(pairs) == [
        "class1/again.JPEG = class2/image004.JPEG",
        "class1/image003.JPEG = class2/image004.JPEG",
        "class2/image004.JPEG = class1/again.JPEG",
        "class2/image004.JPEG = class1/image003.JPEG",
    ]


def test_shards_are_compared_by_their_index(check: Check, root: Path, tmp_path: Path) -> None:
    copies(root / "train/class0/image000.JPEG", root / "val/class0/image007.JPEG")
    pack.pack(root, tmp_path / "packed", PackOptions())
    status, verdicts, _ = check(f"data.root={tmp_path}/packed", "--sample", "5")
    (line,) = verdicts["val in train"]["details"]
    assert status == 1 and "class0/image007.JPEG = " in line and line.endswith("class0/image000.JPEG")
    assert "1 of 36 " in str(verdicts["val in train"]["text"]), "all of val, by the checksums of the index"
    assert " 5 " in str(verdicts["decoding, train"]["text"]) and "empty files, train" not in verdicts


def test_a_sound_data_set_has_no_errors(check: Check) -> None:
    status, verdicts, _ = check("--all")
    assert status == 0
    assert {verdict["level"] for verdict in verdicts.values()} == {"ok"} and "GPU memory" not in verdicts


def test_bad_files_are_found_and_named(check: Check, root: Path) -> None:
    shutil.copytree(root / "train/class2", root / "train/.thumbs")
    (root / "train/class0/photo.heic").touch()
    (root / "train/class0/image001.JPEG").write_bytes(b"")
    (root / "val/class1/image002.JPEG").write_bytes(b"no image at all")
    cut = root / "val/class2/image003.JPEG"
    cut.write_bytes(cut.read_bytes()[:-2] + bytes(20))  # all pixels, but no end mark
    (no_height := root / "val/class0/image000.JPEG").write_bytes(stating(no_height.read_bytes(), height=0))
    gap = root / "train/class1/image002.JPEG"  # ends as a JPEG does
    gap.write_bytes((whole := gap.read_bytes())[: len(whole) // 2] + whole[-2:])
    status, verdicts, output = check()
    assert status == 1
    assert verdicts["empty files, train"]["level"] == verdicts["decoding, val"]["level"] == "error"
    assert verdicts["empty files, train"]["details"] == [f"{root}/train/class0/image001.JPEG"]
    details = {name: str(verdict["details"]) for name, verdict in verdicts.items() if name.endswith(", val")}
    for name in ("class1/image002", "class0/image000"):
        assert f"cannot decode {root}/val/{name}.JPEG: " in details["decoding, val"]
    assert [str(gap) in line for line in verdicts["warnings, train"]["details"]] == [True]
    assert str(cut) in details["truncated, val"]
    assert f"{root}/train/class0/image001.JPEG" in output
    assert {verdicts[name]["level"] for name in ("classes", "hidden folders", "left out, train")} == {"warning"}
    assert ".thumbs" in str(verdicts["classes"]["details"]) and ".heic" in str(verdicts["left out, train"]["text"])


def test_counts_that_are_odd_are_warnings(check: Check, root: Path) -> None:
    """A tiny class, and then names of ImageNet with other counts than ImageNet's."""
    for image in sorted((root / "train/class1").iterdir())[3:]:
        image.unlink()
    copies(root / "val/class0/image000.JPEG", *(root / f"val/class0/more{i}.JPEG" for i in range(120)))
    status, verdicts, _ = check()
    assert status == 0 and verdicts["training images"]["level"] == verdicts["validation images"]["level"] == "warning"
    assert verdicts["training images"]["details"] == ["class1: 3 images"]
    assert verdicts["validation images"]["details"] == ["class1: 12 images", "class2: 12 images"]
    for split in ("train", "val"):
        for i in range(3):
            (root / split / f"class{i}").rename(root / split / f"n0144076{i}")
    _, verdicts, _ = check()
    assert all(number in str(verdicts["training images"]["text"]) for number in ("1,281,167", "732", "1,300"))
    assert verdicts["validation images"]["details"][1] == "n01440761: 12 images"


def test_folders_that_differ_and_empty_and_equal_ones_are_errors(check: Check, root: Path) -> None:
    status, verdicts, _ = check("data.val_folder=train")
    assert status == 1 and f"the same folder, {root}/train" in str(verdicts["val in train"]["text"])
    (root / "val/class2").rename(root / "val/other")
    status, verdicts, _ = check()
    assert status == 1 and verdicts["decoding, val"]["level"] == "ok", "all else is checked"
    assert verdicts["classes"]["details"] == [f"only in {root}/train: class2", f"only in {root}/val: other"]
    shutil.rmtree(root / "train/class1")
    (root / "train/class1").mkdir()
    status, verdicts, _ = check()
    assert status == 1 and list(verdicts) == ["classes, train"]
    assert f"no images in {root}/train/class1" in str(verdicts["classes, train"]["text"])


@pytest.mark.slow
def test_several_processes_find_the_same_files_as_one_process(root: Path) -> None:
    for i in (2, 9):
        (root / f"train/class1/image00{i}.JPEG").write_bytes(b"no image")
    index, rows = scan_split(root, "train"), np.tile(np.arange(36), 4)
    progress: list[tuple[int, int]] = []
    options = {"loading": loading(), "on_progress": lambda *place: progress.append(place)}
    one, two = (list(judge_decoding("train", index, rows, workers=workers, **options)) for workers in (1, 2))
    assert one == two and len(one[0].details) == 8
    assert progress == [(64, 144), (128, 144), (144, 144)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_a_url_is_checked_as_the_folder_is(check: Check, root: Path, bucket: str, tmp_path: Path, packed: bool) -> None:
    copies(root / "train/class0/image000.JPEG", root / "val/class0/image007.JPEG")
    copies(root / "val/class1/image003.JPEG", root / "val/class2/image004.JPEG")
    if packed:
        pack.pack(root, tmp_path / "packed", PackOptions(shard_mb=0.02))
        root = tmp_path / "packed"
    else:
        (root / "train/class0/image001.JPEG").write_bytes(b"")
        (root / "val/class1/image002.JPEG").write_bytes(b"no image at all")
    options = ("--sample", "30")
    expected = check(f"data.root={root}", *options)
    url = upload(root, f"{bucket}/data")
    status, verdicts, _ = check(f"data.root={url}", *options)
    assert status == expected[0] == 1
    assert verdicts == json.loads(json.dumps(expected[1]).replace(str(root), url))


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a small network that knows the three classes."""
    folder = tmp_path_factory.mktemp("trained")
    images = write_images(folder / "data", num_classes=3, per_class=12, seed=9)
    torch.manual_seed(0)
    network = build_network("test_resnet", num_classes=3)
    optimizer = torch.optim.AdamW(network.parameters(), 2e-3)
    loader = train_loader(scan_split(images, "train"), loading(batch_size=12), RankInfo(device=torch.device("cpu")))
    for epoch in range(12):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            cross_entropy(network(batch.images), batch.labels).backward()
            optimizer.step()
    loader.close()
    return save(folder, network, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def test_folders_of_val_that_hold_other_classes_are_named(check: Check, ckpt: Path, root: Path) -> None:
    for old, new in (("class0", "moved"), ("class1", "class0"), ("class2", "class1"), ("moved", "class2")):
        (root / "val" / old).rename(root / "val" / new)
    status, verdicts, _ = check(f"ckpt={ckpt}")
    assert status == 1 and verdicts["labels"]["level"] == "error"
    for folder, held in (("class0", "class1"), ("class1", "class2"), ("class2", "class0")):
        assert any(f"val/{folder} " in line and held in line for line in verdicts["labels"]["details"])
