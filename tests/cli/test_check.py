"""Data sets with one thing wrong each, and what the command says of it."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagenet_opt.check.corrupt import examine
from imagenet_opt.cli import pack
from imagenet_opt.cli.check import main, parse
from imagenet_opt.data.index.folder_index import scan_split
from imagenet_opt.errors import CheckpointNotFound, ConfigError
from imagenet_opt.machine import GIB
from tests.cli.checks import Check, copies


def test_a_sound_data_set_has_no_errors(check: Check) -> None:
    status, found, said = check()
    assert status == 0
    assert {name for name, verdict in found.items() if verdict["level"] != "ok"} <= {"GPU memory"}
    assert found["training images"]["text"] == "36, 12 to 12 a class"
    assert said.endswith("0 errors, 0 warnings\n")


@pytest.mark.parametrize(
    ("card_bytes", "level", "words"),
    [
        (None, "info", r"a training step of 256 images of 32 px needs about 0\.\d+ GiB of GPU memory for its tensors"),
        (GIB, "ok", r".* for its tensors, of the GPU's 1 GiB"),
        (2**24, "warning", r".*; the GPU has 0.0156 GiB, .* About \d+ images fit at once: lower data.batch_size, .*"),
    ],
)
def test_the_memory_of_a_step_is_told(
    card_bytes: int | None, level: str, words: str, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagenet_opt.check.dataset.gpu_bytes", lambda config: card_bytes)
    found = check()[1]["GPU memory"]
    assert found["level"] == level and re.fullmatch(words, str(found["text"]))


def test_the_memory_of_a_step_on_a_cpu_is_no_matter(check: Check) -> None:
    assert "GPU memory" not in check("trainer.accelerator=cpu")[1]


def test_bad_files_are_found_and_named(check: Check, root: Path) -> None:
    (root / "train/class0/image001.JPEG").write_bytes(b"")
    (root / "val/class1/image002.JPEG").write_bytes(b"no image at all")
    cut = root / "val/class2/image003.JPEG"
    cut.write_bytes(cut.read_bytes()[:-200])
    Image.new("L", (40, 40)).save(root / "train/class1/image004.JPEG")
    Image.new("CMYK", (40, 40)).save(root / "train/class1/image005.JPEG")
    status, found, said = check()
    assert status == 1
    assert found["empty files, train"]["level"] == found["decoding, val"]["level"] == "error"
    assert found["empty files, train"]["details"] == [f"{root}/train/class0/image001.JPEG"]
    assert re.fullmatch(rf"cannot decode {root}/val/class1/image002\.JPEG: .*", found["decoding, val"]["details"][0])
    told = {name: verdict["details"] for name, verdict in found.items() if name.endswith(", val")}
    assert any(str(cut) in str(line) for name in ("decoding, val", "truncated, val") for line in told.get(name, []))
    assert re.match(r"1 L, 1 CMYK of 36|1 CMYK, 1 L of 36", str(found["colours, train"]["text"]))
    assert f"{root}/train/class0/image001.JPEG" in said


def test_duplicates_are_found_between_and_within_splits(check: Check, root: Path) -> None:
    copies(root / "train/class0/image000.JPEG", root / "val/class0/image007.JPEG")
    copies(root / "val/class1/image003.JPEG", root / "val/class2/image004.JPEG", root / "val/class1/again.JPEG")
    status, found, _ = check()
    assert status == 1  # more than one in a hundred
    assert found["val in train"]["details"] == [f"{root}/val/class0/image007.JPEG = {root}/train/class0/image000.JPEG"]
    pairs = [line.replace(f"{root}/val/", "") for line in found["twice in val"]["details"]]
    assert sorted(pairs) == [
        "class1/again.JPEG = class2/image004.JPEG",
        "class1/image003.JPEG = class2/image004.JPEG",
        "class2/image004.JPEG = class1/again.JPEG",
        "class2/image004.JPEG = class1/image003.JPEG",
    ]


def test_one_folder_for_both_splits_is_one_error(check: Check, root: Path) -> None:
    status, found, _ = check("data.val_folder=train")
    assert status == 1
    assert found["val in train"]["text"].startswith(f"train and val are the same folder, {root}/train")


def test_shards_are_looked_over_by_their_index(
    check: Check, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies(root / "train/class0/image000.JPEG", root / "val/class0/image007.JPEG")
    pack.main([f"data.root={root}", f"out={tmp_path}/packed"])
    status, found, _ = check(f"data.root={tmp_path}/packed", "--sample", "5")
    (line,) = found["val in train"]["details"]
    assert status == 1 and "class0/image007.JPEG = " in line and line.endswith("class0/image000.JPEG")
    assert found["val in train"]["text"].startswith("1 of 36 ")
    assert found["decoding, train"]["text"] == "all 5 tested images can be decoded"
    assert "empty files, train" not in found


def test_folders_and_shards_are_compared_too(check: Check, root: Path, tmp_path: Path) -> None:
    pack.main([f"data.root={root}", f"out={tmp_path}/packed"])
    shutil.rmtree(tmp_path / "packed/val")
    shutil.copytree(root / "val", tmp_path / "packed/val")
    image = tmp_path / "packed/val/class2/image002.JPEG"
    copies(root / "train/class1/image001.JPEG", image)
    _, found, _ = check(f"data.root={tmp_path}/packed")
    (line,) = found["val in train"]["details"]
    assert line.startswith(f"{image} = ") and line.endswith("class1/image001.JPEG")


def test_classes_that_differ_are_told_and_the_rest_is_looked_at(check: Check, root: Path) -> None:
    (root / "val/class2").rename(root / "val/other")
    status, found, _ = check()
    assert status == 1
    assert found["classes"]["details"] == [f"only in {root}/train: class2", f"only in {root}/val: other"]
    assert found["decoding, val"]["level"] == "ok"


def test_an_empty_class_is_an_error(check: Check, root: Path) -> None:
    shutil.rmtree(root / "train/class1")
    (root / "train/class1").mkdir()
    status, found, _ = check()
    assert status == 1 and list(found) == ["classes, train"]
    assert found["classes, train"]["text"].startswith(f"no images in {root}/train/class1;")


def test_tiny_classes_and_imbalance_are_warnings(check: Check, root: Path) -> None:
    for image in sorted((root / "train/class1").iterdir())[3:]:
        image.unlink()
    status, found, said = check()
    assert status == 0 and found["training images"]["level"] == "warning"
    assert found["training images"]["details"] == ["class1: 3 images"]
    assert "0 errors, 1 warning\n" in said


def test_names_of_wordnet_are_judged_as_imagenet(check: Check, root: Path) -> None:
    for split in ("train", "val"):
        for i in range(3):
            (root / split / f"class{i}").rename(root / split / f"n0144076{i}")
    _, found, _ = check()
    assert found["ImageNet's classes"]["text"].startswith("3 classes, not 1000")
    assert "ImageNet's 732 to 1,300" in str(found["training images"]["text"])
    assert found["validation images"]["details"][0] == "n01440760: 12 images"


@pytest.mark.slow
def test_processes_find_what_one_finds(root: Path) -> None:
    for i in (2, 9):
        Image.new("CMYK", (40, 40)).save(root / f"train/class1/image00{i}.JPEG")
    index, rows = scan_split(root, "train"), np.tile(np.arange(36), 4)
    seen: list[tuple[int, int]] = []
    found = [
        examine(index, rows, workers=workers, timeout_seconds=20, on_progress=lambda *place: seen.append(place))
        for workers in (1, 2)
    ]
    assert found[0] == found[1] and [one.row for one in found[0]] == [14, 21] * 4
    assert seen == [(64, 144), (128, 144), (144, 144)] * 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--sample", "0"], "--sample 0 must be at least 1"),
        (["--sample", "9", "--all"], "cannot be combined with --all"),
        (["--json", "/no/such/folder/a.json"], "--json /no/such/folder/a.json cannot be written"),
        (["ckpt="], "ckpt has no value"),
        (["--sampel", "3"], "(imagenet-opt check --help)"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(argv)


def test_a_checkpoint_that_is_not_there_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"no checkpoint at .*gone\.ckpt \(ckpt\)"):
        main([f"data.root={root}", f"data.cache_dir={tmp_path}/cache", f"ckpt={tmp_path}/gone.ckpt"])


def test_the_demo_can_be_looked_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data=demo", "data.num_train=20", "data.num_val=10", f"data.cache_dir={tmp_path}", "trainer.accelerator=cpu"])
    said = capsys.readouterr().out
    assert "train and val have the same 10 classes" in said
    assert re.search(r": 1 image\n", said) and said.endswith("0 errors, 2 warnings\n")
    with pytest.raises(ConfigError, match=r"data\.root is missing; add data\.root=FOLDER"):
        main([f"data.cache_dir={tmp_path}"])
