"""Which checkpoint is used, which files are skipped, and the errors for a checkpoint that does not fit."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from imagenet_opt.errors import CheckpointError, CheckpointMismatch, CheckpointNotFound
from imagenet_opt.run.checkpoint import files, restore
from imagenet_opt.run.checkpoint.names import step_file


def network(num_classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, num_classes))


def state(step: int, weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The least that a run can resume from."""
    return {
        "global_step": step,
        "network": weights,
        "state_dict": {},
        "optimizer_states": [{"state": {}, "param_groups": [{}]}],
        "lr_schedulers": [],
        "loops": {"fit_loop": {"epoch_progress": {"current": {"processed": 0}}}},
        "callbacks": {},
    }


def save(file: Path, step: int = 0) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    config = {"name": "tiny", "num_classes": 3}
    torch.save(state(step, network().state_dict()) | {"network_config": config}, file)
    return file


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-500])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with the steps 10, 20 and 30, which is the last."""
    for step in (10, 20, 30):
        file = save(step_file(tmp_path, step), step)
    files.link(file, tmp_path / "last.ckpt")
    return tmp_path


def test_auto_is_the_furthest_however_old_its_file_is(folder: Path) -> None:
    files.link(folder / "checkpoints/step_00000010.ckpt", folder / "best.ckpt")
    os.utime(folder / "best.ckpt")  # as copies of folders are
    os.utime(folder / "last.ckpt", (1, 1))
    assert files.find("auto", folder) == folder / "checkpoints/step_00000030.ckpt"


def test_auto_passes_over_damaged_files_and_names_each_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    truncate(folder / "last.ckpt")  # and with it step 30, the same file
    flipped = folder / "checkpoints/step_00000020.ckpt"
    content = bytearray(flipped.read_bytes())
    content[content.index(torch.load(flipped)["network"]["0.weight"].numpy().tobytes())] ^= 1
    flipped.write_bytes(content)
    assert files.find("auto", folder) == folder / "checkpoints/step_00000010.ckpt"
    for name, message in zip(("step_00000030.ckpt", "step_00000020.ckpt"), caplog.messages, strict=True):
        assert name in message


def test_last_is_enough_and_the_best_is_better_than_none(folder: Path) -> None:
    files.link(folder / "checkpoints/step_00000010.ckpt", folder / "best.ckpt")
    for file in (folder / "checkpoints").iterdir():
        file.unlink()
    assert files.find("auto", folder) == folder / "last.ckpt"
    truncate(folder / "last.ckpt")
    assert files.find("auto", folder) == folder / "best.ckpt"


def test_a_run_without_a_usable_checkpoint_does_not_restart_silently(folder: Path) -> None:
    for file in folder.rglob("*.ckpt"):
        truncate(file)
    with pytest.raises(CheckpointError, match=r"none of the 3 .*resume_from=null"):
        files.find("auto", folder)


def test_a_path_may_be_a_file_or_a_run_folder_and_is_never_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "checkpoints/step_00000010.ckpt"
    assert files.find(str(file), folder / "other") == file
    assert files.find(str(folder), folder / "other") == folder / "last.ckpt"
    monkeypatch.setenv("HOME", str(folder))
    assert files.find("~/last.ckpt", folder / "other") == folder / "last.ckpt"
    with pytest.raises(CheckpointNotFound, match=rf"{folder}/none\.ckpt \(resume_from\)"):
        files.find(str(folder / "none.ckpt"), folder)
    truncate(folder / "last.ckpt")
    with pytest.raises(CheckpointError, match=r"last\.ckpt .*resume_from=PATH"):
        files.find(str(folder / "last.ckpt"), folder)


@pytest.mark.parametrize(
    ("resume_from", "seed", "restarts", "goes_on"),
    [(None, 1, "0", True), (None, 2, "0", False), (None, 2, "3", True), ("x.ckpt", 1, "3", False)],
)
def test_the_command_that_began_a_run_goes_on(
    resume_from: str | None, seed: int, restarts: str, goes_on: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with other overrides, if a scheduler has started its job again."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    newest = step_file(folder, 40)
    begun = {"resume_from": None, "overrides": ["seed=1"]}
    torch.save(state(40, network().state_dict()) | {"begun": begun}, newest)
    now = {"resume_from": resume_from, "overrides": [f"seed={seed}"]}
    assert restore.has_begun(now, folder, url=None) is goes_on
    newest.unlink()
    assert not restore.has_begun(now, folder, url=None)


def test_the_tensors_that_do_not_fit_are_listed(folder: Path) -> None:
    files.check_network(files.read(folder / "last.ckpt"), network(), folder)
    other = network(num_classes=5)
    other.append(nn.Linear(5, 5))
    del other[1]
    with pytest.raises(CheckpointMismatch) as raised:
        files.check_network(files.read(folder / "last.ckpt"), other, folder / "last.ckpt")
    extra = "1.num_batches_tracked, 1.running_mean, 1.running_var"
    for words in (f"{folder}/last.ckpt", "tiny, 3 classes", "1.weight (4,) here (5, 4)", extra, "resume_from=null"):
        assert words in str(raised.value)


@pytest.mark.parametrize("can_link", [True, False])
def test_a_name_is_moved_to_another_file_in_one_step(
    can_link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system has no hard links, as some network storage, the name is a copy."""

    def refuse(*_: object) -> None:
        raise PermissionError("Operation not permitted")

    if not can_link:
        monkeypatch.setattr(os, "link", refuse)
    first, second, name = tmp_path / "1", tmp_path / "2", tmp_path / "last.ckpt"
    first.write_text("first")
    second.write_text("second")
    files.link(first, name)
    files.link(second, name)
    second.unlink()
    assert name.read_text() == "second"
    assert first.read_text() == "first"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["1", "last.ckpt"]
