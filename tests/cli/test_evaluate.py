"""The evaluate command as a user meets it."""

import json
from pathlib import Path

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


def test_the_results_are_printed_and_written(
    images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    recipe = {"name": "test_resnet", "num_classes": 3, "blurpool": False, "small_stem": False, "image_size": 32}
    network = build_network("test_resnet", num_classes=3)
    torch.save({"network": network.state_dict(), "network_config": recipe, "global_step": 1}, tmp_path / "last.ckpt")
    own = [f"data.root={images_root}", f"data.cache_dir={tmp_path}/cache", "data.num_workers=0"]
    main([f"ckpt={tmp_path}", *own, "--per-class", "--tta", "--json", f"{tmp_path}/out.json"])
    said, whole = " ".join(capsys.readouterr().out.split()), json.loads((tmp_path / "out.json").read_text())
    assert f"{tmp_path.name}/last.ckpt, 32 px, crop 0.875, with the mirror image" in said
    assert f"{100 * whole['top1']:.2f} % of {sum(whole['images'])} images" in said
    assert (whole["image_size"], whole["crop_ratio"], whole["tta"]) == (32, 0.875, True)
    assert whole["classes"] == ["class0", "class1", "class2"] and whole["top5"] is None
    assert sum(whole["correct"]) / sum(whole["images"]) == pytest.approx(whole["top1"])
    assert all(name in said for name in whole["classes"])
