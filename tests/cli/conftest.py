"""Small data sets, and commands that are called in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_opt.cli.check import main
from tests.conftest import write_images

Check = Callable[..., tuple[int, dict[str, dict[str, object]], str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", num_classes=3, per_class=12)


@pytest.fixture
def check(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Runs the command; gives its status, its verdicts by name, and what it printed."""

    def run(*words: str) -> tuple[int, dict[str, dict[str, object]], str]:
        file = tmp_path / "check.json"
        small = [
            "model.name=test_resnet",
            "data.image_size=32",
            "data.batch_size=24",
            "trainer.accelerator=cpu",  # without the memory of a GPU
            f"hydra.run.dir={tmp_path}/runs/new",
        ]
        given = [f"data.root={root}", *small, *words]  # a later data.root counts
        status = 0
        try:
            main([*given, f"data.cache_dir={tmp_path}/cache", "data.num_workers=0", f"--json={file}"])
        except SystemExit as end:
            status = int(str(end.code))
        verdicts = json.loads(file.read_text())["verdicts"]
        return status, {verdict["check"]: verdict for verdict in verdicts}, capsys.readouterr().out

    return run


@pytest.fixture
def tiny_root(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", num_classes=2, per_class=6)


@pytest.fixture
def words(tiny_root: Path, tmp_path: Path) -> list[str]:
    """Words of the command line that choose the images of `tiny_root`."""
    return [f"data.root={tiny_root}", f"data.cache_dir={tmp_path}/cache"]
