"""A checkpoint is data of strangers: whatever it holds, it is refused in one line and costs little memory."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from imagenet_opt.errors import CheckpointError, ImagenetOptError
from imagenet_opt.model.network import build_network
from imagenet_opt.model.saved_network import open_network
from imagenet_opt.run.checkpoint import files
from tests.run.checkpoint import test_files

RECIPE = {"name": "test_resnet", "num_classes": 3, "blurpool": False, "small_stem": False, "image_size": 32}
HEAD = "fc.weight"


def save(file: Path, **changes: Any) -> Path:
    network = build_network("test_resnet", num_classes=3).state_dict()
    torch.save({"network": network, "network_config": RECIPE} | changes, file)
    return file


def with_head(tensor: Any) -> dict[str, Any]:
    return {"network": build_network("test_resnet", num_classes=3).state_dict() | {HEAD: tensor}}


def with_recipe(**changes: Any) -> dict[str, Any]:
    return {"network_config": RECIPE | changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"network": "text"},
        {"network": {1: torch.zeros(2)}},
        with_head(None),
        with_head(torch.zeros(3, 96).to_sparse()),
        with_head(torch.zeros(3, 96, device="meta")),
        with_head(torch.zeros(1).expand(3, 96)),
        {"network_config": None},
        with_recipe(name=5),
        with_recipe(name=["test_resnet"]),
        with_recipe(num_classes=10**9),
        with_recipe(num_classes="3"),
        with_recipe(num_classes=-1),
        with_recipe(image_size=10**6),
        with_recipe(image_size="large"),
        with_recipe(classes=5),
        *(with_recipe(options=options) for options in (5, {"depth": 4000}, {"features_only": True}, {"block": [1]})),
    ],
)
def test_a_network_of_another_form_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ImagenetOptError, match=r"x\.ckpt") as raised:
        open_network(save(tmp_path / "x.ckpt", **changes))
    assert "\n" not in str(raised.value)


def test_keys_of_a_later_version_have_their_defaults(tmp_path: Path) -> None:
    least = {"name": "test_resnet", "num_classes": 3}
    network, config = open_network(save(tmp_path / "x.ckpt", network_config=least))
    assert config == least | {"image_size": network.pretrained_cfg["input_size"][-1]}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (with_recipe(classes=5), "network_config.classes"),
        (with_recipe(mean=torch.zeros(3)), "network_config.mean"),
        ({"loops": 5}, "loops.fit_loop"),
        ({"loops": {"fit_loop": {"epoch_progress": []}}}, "loops.fit_loop"),
        ({"callbacks": "Rehearsal"}, "callbacks"),
        ({"callbacks": {"Checkpoint": None}}, "callbacks.Checkpoint"),
        ({"optimizer_states": []}, "optimizer_states"),
        ({"optimizer_states": [{"state": {}, "param_groups": []}]}, "optimizer_states.0"),
        ({"lr_schedulers": None}, "lr_schedulers"),
        ({"ImageData": {"epoch": 0, "step": 0, "images": {}, "skipped": 5}}, "ImageData.skipped"),
        ({"global_step": -1}, "global_step"),
        ({"train_sums": 5}, "train_sums"),
        ({"recipes": {0: {"model": torch.zeros(1)}}}, "recipes.0"),
        ({"begun": 5}, "begun"),
        ({"starts": [[0]]}, "starts.0"),
    ],
)
def test_a_run_resumes_from_no_state_of_another_form(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    whole = test_files.state(2, build_network("test_resnet", num_classes=3).state_dict())
    assert files.find(str(save(tmp_path / "x.ckpt", **whole)), tmp_path)
    with pytest.raises(CheckpointError, match=rf"x\.ckpt holds no usable {named};.*\(resume_from\)$"):
        files.find(str(save(tmp_path / "x.ckpt", **whole | changes)), tmp_path)


def test_a_file_that_would_run_code_is_not_opened(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    with pytest.raises(CheckpointError, match=r"x\.ckpt"):
        files.read(save(tmp_path / "x.ckpt", network=Evil()))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("read", [files.verify, files.read])
def test_a_zip_bomb_is_refused_before_it_is_read(tmp_path: Path, read: Callable[[Path], object]) -> None:
    source = save(tmp_path / "whole.ckpt")
    with zipfile.ZipFile(source) as whole, zipfile.ZipFile(tmp_path / "x.ckpt", "w", zipfile.ZIP_DEFLATED) as bomb:
        for name in whole.namelist():
            bomb.writestr(name, whole.read(name))
        bomb.writestr("whole/data/999", bytes(10**7))
    with pytest.raises(CheckpointError, match=r"x\.ckpt"):
        read(tmp_path / "x.ckpt")
