"""evaluate and export fetch the checkpoint of a bucket as a resume does."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from imagenet_opt.cli import export
from imagenet_opt.errors import CheckpointError, CheckpointNotFound, ConfigError, RunFolderError
from imagenet_opt.model.network import build_network
from imagenet_opt.object_storage import ObjectStorage
from imagenet_opt.run.checkpoint import mirror
from tests.object_server import put

pytestmark = pytest.mark.slow


def checkpoint(file: Path, seed: int) -> dict[str, torch.Tensor]:
    """An untrained network in a file. Returns its weights."""
    torch.manual_seed(seed)
    recipe = {"name": "test_resnet", "num_classes": 3, "blurpool": False, "small_stem": False, "image_size": 32}
    weights = build_network("test_resnet", num_classes=3).state_dict()
    torch.save({"network": weights, "network_config": recipe, "global_step": seed}, file)
    return weights


@pytest.fixture
def run(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a mirror whose checkpoint of step 2 has seed 2, and whose best has seed 1."""
    for seed, name in ((1, "best.ckpt"), (2, "newest.ckpt")):
        checkpoint(tmp_path / name, seed)
    files = {"checkpoint": str(tmp_path / "newest.ckpt"), "best": str(tmp_path / "best.ckpt")}
    name = "checkpoints/step_00000002.ckpt"
    storage = ObjectStorage(f"{bucket}/run", mirror.KEY)
    mirror.upload(storage, name=name, others=[], keep=2, replaced=[], **files)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return f"{bucket}/run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("/best.ckpt", "best.ckpt"),
        ("/checkpoints/step_00000002.ckpt", "newest.ckpt"),
    ],
)
def test_export_takes_the_checkpoint_that_is_named(run: str, tmp_path: Path, name: str, file: str) -> None:
    export.main([f"ckpt={run}{name}"])
    (out,) = (tmp_path / "work").iterdir()
    assert out.stem == Path(name).stem
    expected = torch.load(tmp_path / file, weights_only=True)["network"]
    assert all(torch.equal(tensor, expected[key]) for key, tensor in load_file(out).items())
    assert os.listdir(tmp_path / "temporary") == []


def test_mistakes_are_one_line(run: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def message(url: str, kind: type[Exception]) -> str:
        with pytest.raises(kind) as raised:
            export.main([f"ckpt={url}"])
        assert "\n" not in str(raised.value) and "ckpt" in str(raised.value)
        return str(raised.value)

    assert f"no checkpoint at {run}/none.ckpt (ckpt)" in message(f"{run}/none.ckpt", CheckpointNotFound)
    assert f"an object such as {run}/best.ckpt" in message(run, ConfigError)
    put(f"{run}/cut.ckpt", b"PK")
    text = message(f"{run}/cut.ckpt", CheckpointError)
    assert text.startswith(f"the checkpoint from {run}/cut.ckpt: ") and "cannot be opened as a checkpoint" in text
    monkeypatch.setattr("tempfile.tempdir", "/proc/none")
    assert "TMPDIR" in message(f"{run}/best.ckpt", RunFolderError)
