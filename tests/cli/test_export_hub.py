"""Repositories for the Hugging Face Hub: timm opens them, and their model card says only what the record holds."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor

from imagenet_opt.cli.export import main
from imagenet_opt.errors import ConfigError, ModelError
from imagenet_opt.model.network import build_network
from imagenet_opt.run.record import RECORD, add_evaluation, write_record
from tests.cli.conftest import save
from tests.cli.test_export import images, logits
from tests.hub_server import TOKEN

CLASSES = ["cat", "dog", "newt"]
NUMBERS: dict[str, Any] = {
    "format": 1, "experiment": "rn50_ffcv", "recipe_sha256": "a" * 64, "config_sha256": "b" * 64,
    "versions": {"torch": "9.8.7"}, "device": "NVIDIA A10G", "num_gpus": 4, "num_machines": 1,
    "train_images": 4321, "val_images": 30, "epochs": 17.0, "steps": 70, "global_batch": 1056, "samples": 73920,
    "starts": [[0, 9000.0]], "hours": 2.5, "price_per_hour": 0.5, "dollars": 1.25, "numbers": {"val/acc1": 0.1234},
}  # fmt: skip
EVALUATION: dict[str, Any] = {
    "eval": "ffcv", "image_size": 256, "crop_ratio": 0.875, "interpolation": "area", "tta": True,
    "top1": 23 / 30, "top5": None, "correct": [8, 8, 7], "images": [10, 10, 10],
}  # fmt: skip


@pytest.fixture
def ckpt(tmp_path: Path) -> Path:
    seen = {"val_crop_ratio": 0.9, "val_interpolation": "area", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.1]}
    return save(tmp_path / "run", timm.create_model("test_resnet", num_classes=3), classes=CLASSES, **seen)


def expected(ckpt: Path) -> Tensor:
    network = timm.create_model("test_resnet", num_classes=3)
    network.load_state_dict(torch.load(ckpt)["network"])
    return logits(network.eval(), images(4))


def test_timm_opens_a_dry_run_with_the_same_logits_and_the_images_of_the_run(ckpt: Path, tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    main([f"ckpt={ckpt}", "hub=owner/net", "--dry-run", str(folder)])
    opened = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert torch.equal(logits(opened, images(4)), expected(ckpt))
    seen = resolve_model_data_config(opened)
    assert (seen["input_size"], seen["crop_pct"], seen["interpolation"]) == ((3, 32, 32), 0.9, "box")
    assert (seen["mean"], seen["std"]) == ([0.5, 0.4, 0.3], [0.2, 0.2, 0.1])
    assert opened.pretrained_cfg["label_names"] == CLASSES
    about = json.loads((folder / "config.json").read_text())
    assert (about["architecture"], about["num_classes"]) == ("test_resnet", 3)
    assert not {"license", "tag", "paper_ids", "test_input_size"} & about["pretrained_cfg"].keys()
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    card = (folder / "README.md").read_text()
    assert "accuracy | not known" in card and "run | not known" in card
    with pytest.raises(ConfigError, match="--dry-run FOLDER"):
        main([f"ckpt={ckpt}", "hub=owner/net", f"--dry-run={folder}"])


def test_the_numbers_of_the_card_are_those_of_the_record_and_of_these_weights(ckpt: Path, tmp_path: Path) -> None:
    write_record(NUMBERS, ckpt.parent / RECORD)
    assert add_evaluation(ckpt, EVALUATION, 30)
    main([f"ckpt={ckpt}", "hub=owner/net", f"--dry-run={tmp_path / 'repo'}"])
    card = (tmp_path / "repo/README.md").read_text()
    evaluated = ("76.67%", "30 validation images", "256 px", "area", "mirror")
    trained = ("rn50_ffcv", "17 epochs", "4 x NVIDIA A10G", "4321 images", "batches of 1056", "torch 9.8.7", "a" * 64)
    for fact in (*evaluated, *trained, "2.5 hours", "1.25 dollars"):
        assert fact in card
    assert "12.34" not in card and str(tmp_path) not in card
    weights = torch.load(ckpt) | {"global_step": 8}
    torch.save(weights, ckpt)
    main([f"ckpt={ckpt}", "hub=owner/net", f"--dry-run={tmp_path / 'other'}"])
    card = (tmp_path / "other/README.md").read_text()
    assert "76.67%" not in card and "accuracy | not known" in card and "17 epochs" in card


def test_an_uploaded_network_opens_from_the_hub_and_its_card_is_kept(
    ckpt: Path, hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"ckpt={ckpt}", "hub=owner/net"]
    for token in (None, "hf_wrong"):
        if token is not None:
            monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(ConfigError, match="hub=owner/net"):
            main(words)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    main(words)
    (hub / "owner/net/README.md").write_text("mine")
    main([*words, "image_size=64"])
    assert "timm.create_model('hf-hub:owner/net', pretrained=True)" in capsys.readouterr().out
    assert (hub / "owner/net/README.md").read_text() == "mine"
    opened = timm.create_model("hf-hub:owner/net", pretrained=True).eval()
    assert opened.pretrained_cfg["input_size"][-1] == 64
    assert torch.equal(logits(opened, images(4)), expected(ckpt))


def test_a_network_that_timm_does_not_have_and_a_damaged_record_are_refused(ckpt: Path, tmp_path: Path) -> None:
    words = ["hub=owner/net", f"--dry-run={tmp_path / 'repo'}"]
    (ckpt.parent / RECORD).write_text("{}")
    with pytest.raises(ConfigError, match=RECORD):
        main([f"ckpt={ckpt}", *words])
    network = build_network("resnet18", num_classes=3, small_stem=True)
    small = save(tmp_path / "small", network, name="resnet18", small_stem=True)
    with pytest.raises(ModelError, match=r"model\.small_stem"):
        main([f"ckpt={small}", *words])
    assert not (tmp_path / "repo").exists()
