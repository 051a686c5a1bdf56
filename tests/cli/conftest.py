"""A small data set, a checkpoint of a network, and the check command, which is called in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from imagenet_opt.cli.check import main
from tests.conftest import write_images

Check = Callable[..., tuple[int, dict[str, dict[str, object]], str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", num_classes=3, per_class=12)


def save(folder: Path, network: nn.Module, **changes: Any) -> Path:
    """A checkpoint of a test_resnet for three classes; changes: of what it says about its network."""
    recipe = {"name": "test_resnet", "num_classes": 3, "blurpool": False, "small_stem": False, "image_size": 32}
    folder.mkdir(exist_ok=True)
    path = folder / "last.ckpt"
    torch.save({"network": network.state_dict(), "network_config": recipe | changes, "global_step": 7}, path)
    return path


@pytest.fixture
def check(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Runs the command; gives its status, its verdicts by name, and what it printed."""

    def run(*words: str) -> tuple[int, dict[str, dict[str, object]], str]:
        file, status = tmp_path / "check.json", 0
        small = ["model.name=test_resnet", "data.image_size=32", "data.batch_size=24", "data.num_workers=0"]
        small += ["trainer.accelerator=cpu", f"data.cache_dir={tmp_path}/cache"]  # without the memory of a GPU
        try:
            main([f"data.root={root}", *small, *words, f"--json={file}"])  # a later data.root counts
        except SystemExit as end:
            status = int(str(end.code))
        verdicts = json.loads(file.read_text())["verdicts"]
        return status, {verdict["check"]: verdict for verdict in verdicts}, capsys.readouterr().out

    return run
