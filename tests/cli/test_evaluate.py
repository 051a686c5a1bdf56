"""The evaluate command: arguments, printed tables, JSON."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_opt.cli.evaluate import main
from imagenet_opt.errors import ConfigError
from imagenet_opt.model.network import build_network
from imagenet_opt.training.build_run import build_run
from tests.cli.conftest import save
from tests.config.configs import tiny


def checkpoint(folder: Path, root: Path, **facts: Any) -> list[str]:
    """Words that evaluate an untrained network on the images of `root`."""
    torch.manual_seed(0)
    save(folder, build_network("test_resnet", num_classes=3), **facts)
    return [f"ckpt={folder}", f"data.root={root}", f"data.cache_dir={folder}/cache", "data.num_workers=0"]


@pytest.mark.slow
def test_images_follow_the_runs_validation_and_then_the_user(
    images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"val_crop_ratio": 0.9, "val_interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}
    words, results = checkpoint(tmp_path, images_root, val_flip=True, **facts), []
    for change in ([], ["data.val_crop_ratio=1"], ["data.mean=[0,0,0]"], ["model.val_flip=false"]):
        main([*words, *change, "--json", f"{tmp_path}/out.json"])
        results.append(json.loads((tmp_path / "out.json").read_text()))
    output = " ".join(capsys.readouterr().out.split())
    assert "32 px bicubic, crop 0.9, with the mirror image" in output and "32 px bicubic, crop 1, " in output
    assert [result["tta"] for result in results] == [True, True, True, False]
    assert len({result["nll"] for result in results}) == 4


@pytest.mark.slow
def test_the_loss_is_that_of_the_runs_validation_in_its_precision(images_root: Path, tmp_path: Path) -> None:
    words = ("trainer.max_epochs=1", "trainer.precision=bf16-mixed", "trainer.log_every_n_steps=1")
    run = build_run(tiny(tmp_path, images_root, *words, "~callbacks.timeline"))
    run.trainer.fit(run.model, datamodule=run.data)
    logged = float(run.trainer.callback_metrics["val/loss"])
    words = (f"ckpt={run.folder}", f"data.root={images_root}", f"data.cache_dir={tmp_path}/cache", "data.num_workers=0")
    results = []
    for changes in ([], ["trainer.precision=32-true"]):
        main([*words, "data.batch_size=6", *changes, "--json", f"{tmp_path}/out.json"])
        results.append(json.loads((tmp_path / "out.json").read_text()))
    assert [result["precision"] for result in results] == ["bf16-mixed", "32-true"]
    assert results[0]["nll"] == pytest.approx(logged, rel=1e-6)
    assert results[1]["nll"] != pytest.approx(logged, rel=1e-6)


def test_a_file_of_timms_script_is_evaluated_as_the_script_validates(images_root: Path, tmp_path: Path) -> None:
    facts = {"mean": [0.4] * 3, "std": [0.3] * 3, "val_crop_ratio": 0.9, "val_interpolation": "bicubic"}
    words, results = checkpoint(tmp_path, images_root, **facts), []
    args = Namespace(
        model="test_resnet", img_size=32, crop_pct=0.9, interpolation="bicubic", mean=[0.4] * 3, std=[0.3] * 3
    )
    weights = torch.load(tmp_path / "last.ckpt")["network"]
    torch.save({"arch": "test_resnet", "state_dict": weights, "args": args}, tmp_path / "timm.pth.tar")
    for word in (words[0], f"ckpt={tmp_path}/timm.pth.tar"):
        main([word, *words[1:], "--json", f"{tmp_path}/out.json"])
        results.append(json.loads((tmp_path / "out.json").read_text()))
    assert [result["nll"] for result in results] == [results[0]["nll"]] * 2
    assert [result["crop_ratio"] for result in results] == [0.9, 0.9]


def test_results_are_printed_and_written(images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = checkpoint(tmp_path, images_root)
    (tmp_path / "last.ckpt").rename(tmp_path / "best.ckpt")
    (tmp_path / "last.ckpt").touch()
    for word in ("model.name=resnet18", "model.blurpool=true"):
        with pytest.raises(ConfigError, match=word):
            main([*words, word])
    main([*words, "model.name=test_resnet", "--per-class", "--tta", "--json", f"{tmp_path}/out.json"])
    output, results = " ".join(capsys.readouterr().out.split()), json.loads((tmp_path / "out.json").read_text())
    assert f"{tmp_path.name}/best.ckpt, 32 px bilinear, crop 0.875, with the mirror image" in output
    assert f"{100 * results['top1']:.2f} % of {sum(results['images'])} images" in output
    assert (results["image_size"], results["crop_ratio"], results["tta"]) == (32, 0.875, True)
    assert results["classes"] == ["class0", "class1", "class2"] and results["top5"] is None
    assert sum(results["correct"]) / sum(results["images"]) == pytest.approx(results["top1"])
    assert all(name in output for name in results["classes"])
