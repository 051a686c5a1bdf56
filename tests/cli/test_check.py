"""The check command on data sets with one fault each."""

import json
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
from tests.conftest import loading
from tests.faulty_proxy import faulty_proxy
from tests.object_server import upload


def test_a_sound_data_set_has_no_errors(check: Check) -> None:
    status, verdicts, output = check("trainer.accelerator=cpu")
    assert status == 0
    assert {verdict["level"] for verdict in verdicts.values()} == {"ok"} and "GPU memory" not in verdicts
    assert verdicts["training images"]["text"] == "36, 12 a class"
    assert output.endswith("0 errors, 0 warnings\n")


@pytest.mark.parametrize(
    ("card_bytes", "level", "words"),
    [
        (None, "info", r"a training step of 256 images of 32 px needs about 0\.\d+ GiB of GPU memory for its tensors"),
        (GIB, "ok", r".* for its tensors, of the GPU's 1 GiB"),
        (2**24, "warning", r".*; the GPU has 0.0156 GiB, .* About \d+ images fit at once: lower data.batch_size, .*"),
    ],
)
def test_the_memory_of_a_step_is_judged(
    card_bytes: int | None, level: str, words: str, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagenet_opt.check.dataset.gpu_bytes", lambda config: card_bytes)
    verdicts = check("data.batch_size=256")[1]["GPU memory"]
    assert verdicts["level"] == level and re.fullmatch(words, str(verdicts["text"]))


def test_a_batch_that_training_refuses_is_a_warning(check: Check) -> None:
    assert check()[1]["batch"]["text"] == "36 training images an epoch, 24 a step"
    status, verdicts, output = check("data.batch_size=19", "trainer.devices=2", "trainer.accelerator=cpu")
    assert status == 0 and output.endswith("0 errors, 1 warning\n") and verdicts["batch"]["level"] == "warning"
    assert "data.batch_size=18 or less" in str(verdicts["batch"]["text"])


def test_bad_files_are_found_and_named(check: Check, root: Path) -> None:
    (root / "train/class0/image001.JPEG").write_bytes(b"")
    (root / "val/class1/image002.JPEG").write_bytes(b"no image at all")
    cut = root / "val/class2/image003.JPEG"
    cut.write_bytes(cut.read_bytes()[:-200])
    Image.new("L", (40, 40)).save(root / "train/class1/image004.JPEG")
    Image.new("CMYK", (40, 40)).save(root / "train/class1/image005.JPEG")
    status, verdicts, output = check()
    assert status == 1
    assert verdicts["empty files, train"]["level"] == verdicts["decoding, val"]["level"] == "error"
    assert verdicts["empty files, train"]["details"] == [f"{root}/train/class0/image001.JPEG"]
    assert re.fullmatch(rf"cannot decode {root}/val/class1/image002\.JPEG: .*", verdicts["decoding, val"]["details"][0])
    details = {name: verdict["details"] for name, verdict in verdicts.items() if name.endswith(", val")}
    assert any(str(cut) in str(line) for name in ("decoding, val", "truncated, val") for line in details.get(name, []))
    assert re.match(r"1 L, 1 CMYK of 36|1 CMYK, 1 L of 36", str(verdicts["colours, train"]["text"]))
    assert f"{root}/train/class0/image001.JPEG" in output


def test_duplicates_are_found_between_and_within_splits(check: Check, root: Path) -> None:
    copies(root / "train/class0/image000.JPEG", root / "val/class0/image007.JPEG")
    copies(root / "val/class1/image003.JPEG", root / "val/class2/image004.JPEG", root / "val/class1/again.JPEG")
    status, verdicts, _ = check()
    assert status == 1  # more than one in a hundred
    assert verdicts["val in train"]["details"] == [
        f"{root}/val/class0/image007.JPEG = {root}/train/class0/image000.JPEG"
    ]
    pairs = [line.replace(f"{root}/val/", "") for line in verdicts["twice in val"]["details"]]
    assert sorted(pairs) == [
        "class1/again.JPEG = class2/image004.JPEG",
        "class1/image003.JPEG = class2/image004.JPEG",
        "class2/image004.JPEG = class1/again.JPEG",
        "class2/image004.JPEG = class1/image003.JPEG",
    ]


def test_one_folder_for_both_splits_is_one_error(check: Check, root: Path) -> None:
    status, verdicts, _ = check("data.val_folder=train")
    assert status == 1
    assert verdicts["val in train"]["text"].startswith(f"train and val are the same folder, {root}/train")


def test_shards_are_compared_by_their_index(
    check: Check, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies(root / "train/class0/image000.JPEG", root / "val/class0/image007.JPEG")
    pack.main([f"data.root={root}", f"out={tmp_path}/packed"])
    status, verdicts, _ = check(f"data.root={tmp_path}/packed", "--sample", "5")
    (line,) = verdicts["val in train"]["details"]
    assert status == 1 and "class0/image007.JPEG = " in line and line.endswith("class0/image000.JPEG")
    assert verdicts["val in train"]["text"].startswith("1 of 36 ")
    assert verdicts["decoding, train"]["text"] == "all 5 tested images can be decoded"
    assert "empty files, train" not in verdicts


def test_folders_and_shards_are_compared_too(check: Check, root: Path, tmp_path: Path) -> None:
    pack.main([f"data.root={root}", f"out={tmp_path}/packed"])
    shutil.rmtree(tmp_path / "packed/val")
    shutil.copytree(root / "val", tmp_path / "packed/val")
    image = tmp_path / "packed/val/class2/image002.JPEG"
    copies(root / "train/class1/image001.JPEG", image)
    _, verdicts, _ = check(f"data.root={tmp_path}/packed")
    (line,) = verdicts["val in train"]["details"]
    assert line.startswith(f"{image} = ") and line.endswith("class1/image001.JPEG")


def test_different_classes_are_named_and_all_else_is_checked(check: Check, root: Path) -> None:
    (root / "val/class2").rename(root / "val/other")
    status, verdicts, _ = check()
    assert status == 1
    assert verdicts["classes"]["details"] == [f"only in {root}/train: class2", f"only in {root}/val: other"]
    assert verdicts["decoding, val"]["level"] == "ok"


def test_an_empty_class_is_an_error(check: Check, root: Path) -> None:
    shutil.rmtree(root / "train/class1")
    (root / "train/class1").mkdir()
    status, verdicts, _ = check()
    assert status == 1 and list(verdicts) == ["classes, train"]
    assert verdicts["classes, train"]["text"].startswith(f"no images in {root}/train/class1;")


def test_tiny_classes_and_imbalance_are_warnings(check: Check, root: Path) -> None:
    for image in sorted((root / "train/class1").iterdir())[3:]:
        image.unlink()
    status, verdicts, output = check()
    assert status == 0 and verdicts["training images"]["level"] == "warning"
    assert verdicts["training images"]["details"] == ["class1: 3 images"]
    assert "0 errors, 1 warning\n" in output


def test_names_of_wordnet_are_judged_as_imagenet(check: Check, root: Path) -> None:
    for split in ("train", "val"):
        for i in range(3):
            (root / split / f"class{i}").rename(root / split / f"n0144076{i}")
    _, verdicts, _ = check()
    assert verdicts["ImageNet's classes"]["text"].startswith("3 classes, not 1000")
    assert "732 to 1,300 images as in ImageNet" in str(verdicts["training images"]["text"])
    assert verdicts["validation images"]["details"][0] == "n01440760: 12 images"


@pytest.mark.slow
def test_several_processes_find_the_same_files_as_one_process(root: Path) -> None:
    for i in (2, 9):
        Image.new("CMYK", (40, 40)).save(root / f"train/class1/image00{i}.JPEG")
    index, rows = scan_split(root, "train"), np.tile(np.arange(36), 4)
    progress: list[tuple[int, int]] = []
    suspects = [
        examine(index, rows, workers=workers, loading=loading(), on_progress=lambda *place: progress.append(place))
        for workers in (1, 2)
    ]
    assert suspects[0] == suspects[1] and [suspect.row for suspect in suspects[0]] == [14, 21] * 4
    assert progress == [(64, 144), (128, 144), (144, 144)] * 2


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
def test_unsuitable_arguments_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(argv)


@pytest.mark.slow
def test_a_missing_checkpoint_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"no checkpoint at .*gone\.ckpt \(ckpt\)"):
        main([f"data.root={root}", f"data.cache_dir={tmp_path}/cache", f"ckpt={tmp_path}/gone.ckpt"])


def test_the_demo_can_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data=demo", "data.num_train=20", "data.num_val=10", "data.batch_size=20", f"data.cache_dir={tmp_path}"])
    output = capsys.readouterr().out
    assert "train and val have the same 10 classes" in output
    assert re.search(r": 1 image\n", output) and output.endswith("0 errors, 2 warnings\n")
    with pytest.raises(ConfigError, match=r"data\.root is missing; add data\.root=FOLDER"):
        main([f"data.cache_dir={tmp_path}"])


@pytest.mark.slow
@pytest.mark.parametrize("cache_gb", ["null", "0"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_url_is_checked_as_the_folder_is(
    check: Check, root: Path, bucket: str, object_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    packed: bool, cache_gb: str,
) -> None:  # fmt: skip
    """With the same verdicts, and as many requests as the first line says."""
    copies(root / "train/class0/image000.JPEG", root / "val/class0/image007.JPEG")
    copies(root / "val/class1/image003.JPEG", root / "val/class2/image004.JPEG")
    Image.new("CMYK", (40, 40)).save(root / "train/class1/image005.JPEG")
    if packed:
        pack.main([f"data.root={root}", f"out={tmp_path}/packed", "shard_mb=0.02"])
        root = tmp_path / "packed"
    else:
        (root / "train/class0/image001.JPEG").write_bytes(b"")
        (root / "val/class1/image002.JPEG").write_bytes(b"no image at all")
    options = ("trainer.accelerator=cpu", f"data.cache_gb={cache_gb}", "--sample", "30")
    expected = check(f"data.root={root}", *options)
    url = upload(root, f"{bucket}/data")
    with faulty_proxy(object_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        status, verdicts, output = check(f"data.root={url}", *options)
        first = output.splitlines()[0]
        num = int(re.fullmatch(rf"{url}: the images are read with about (\d+) GET requests, .*", first)[1])  # type: ignore[index]
        assert num == len([path for path in proxy.paths if path.endswith(".tar" if packed else ".JPEG")])
        again = check(f"data.root={url}", *options)
    assert status == expected[0] == 1
    assert verdicts == json.loads(json.dumps(expected[1]).replace(str(root), url)) == again[1]
    assert f"about {num if cache_gb == '0' else 0} GET requests" in again[2]
