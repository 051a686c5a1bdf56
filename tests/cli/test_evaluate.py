"""The evaluate command as a user meets it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_opt.cli.evaluate import main, parse
from imagenet_opt.errors import CheckpointError, ConfigError
from imagenet_opt.model.network import build_network


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "add ckpt=RUN_FOLDER"),
        (["ckpt=a", "model.pretrained=true"], "add ckpt=RUN_FOLDER"),
        (["ckpt=a", "eval=timm", "data.val_image_size=288"], "eval=timm and data.val_image_size=288 both set"),
        (["ckpt=a", "--json", "/nowhere/a.json"], "--json /nowhere/a.json cannot be written"),
        (["ckpt=a", "--per_class"], "unrecognized arguments: --per_class"),
    ],
)
def test_mistakes_are_told_at_once(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(argv)


def test_of_a_run_its_best_checkpoint_is_evaluated(tmp_path: Path) -> None:
    assert parse([f"ckpt={tmp_path}"]).ckpt == tmp_path / "last.ckpt"
    (tmp_path / "best.ckpt").touch()
    assert parse([f"ckpt={tmp_path}"]).ckpt == tmp_path / "best.ckpt"


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.ckpt"):
        main([f"ckpt={tmp_path}/none.ckpt", "data=demo"])


def checkpoint(folder: Path, **facts: Any) -> list[str]:
    """Words that evaluate an untrained network on the images of images_root; facts: about its classes."""
    torch.manual_seed(0)
    recipe = {"name": "test_resnet", "blurpool": False, "small_stem": False, "image_size": 32} | facts
    network = build_network("test_resnet", num_classes=facts["num_classes"])
    torch.save({"network": network.state_dict(), "network_config": recipe, "global_step": 1}, folder / "last.ckpt")
    return [f"ckpt={folder}", f"data.cache_dir={folder}/cache", "data.num_workers=0"]


def test_classes_that_the_data_lacks_are_left_out_and_that_is_said(
    images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = checkpoint(tmp_path, num_classes=5, classes=["zebra", "class1", "class2", "ant", "class0"])
    main([*own, f"data.root={images_root}", "--json", f"{tmp_path}/out.json"])
    assert "crop 0.875, logits restricted to 3 of 5 classes" in " ".join(capsys.readouterr().out.split())
    whole = json.loads((tmp_path / "out.json").read_text())
    assert (whole["num_logits"], whole["classes"]) == (5, ["class0", "class1", "class2"])


def test_images_are_those_of_the_runs_validation_unless_the_user_sets_them(
    images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"val_crop_ratio": 0.9, "val_interpolation": "bicubic", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    own = [*checkpoint(tmp_path, num_classes=3, **facts), f"data.root={images_root}", "--json", f"{tmp_path}/out.json"]
    losses = []
    for changes in ([], ["data.val_crop_ratio=1"], ["data.mean=[0,0,0]"]):
        main([*own, *changes])
        losses.append(json.loads((tmp_path / "out.json").read_text())["nll"])
    said = " ".join(capsys.readouterr().out.split())
    assert "32 px bicubic, crop 0.9 " in said and "32 px bicubic, crop 1 " in said
    assert len(set(losses)) == 3


def test_a_file_that_is_not_real_json_is_told(images_root: Path, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("[[1], [2]]")
    own = checkpoint(tmp_path, num_classes=3)
    with pytest.raises(ConfigError, match=r"--real-labels \S+ holds 2 entries; expected real.json of 50,000 lists"):
        main([*own, f"data.root={images_root}", "--real-labels", f"{tmp_path}/real.json"])


def test_the_results_are_printed_and_written(
    images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [*checkpoint(tmp_path, num_classes=3), f"data.root={images_root}"]
    main([*own, "--per-class", "--tta", "--json", f"{tmp_path}/out.json"])
    said, whole = " ".join(capsys.readouterr().out.split()), json.loads((tmp_path / "out.json").read_text())
    assert f"{tmp_path.name}/last.ckpt, 32 px bilinear, crop 0.875, with the mirror image" in said
    assert f"{100 * whole['top1']:.2f} % of {sum(whole['images'])} images" in said
    assert (whole["image_size"], whole["crop_ratio"], whole["tta"]) == (32, 0.875, True)
    assert whole["classes"] == ["class0", "class1", "class2"] and whole["top5"] is None
    assert sum(whole["correct"]) / sum(whole["images"]) == pytest.approx(whole["top1"])
    assert all(name in said for name in whole["classes"])
