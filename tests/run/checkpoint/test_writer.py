"""A full disk, a kill, a clock that goes back: the last good checkpoint stays, and the run continues."""

import errno
import multiprocessing
import os
import shutil
import time
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from imagenet_opt.run.checkpoint import files
from imagenet_opt.run.checkpoint.names import BEST, LAST, step_file, step_files
from imagenet_opt.run.checkpoint.writer import CheckpointWriter, HostCopy
from tests.run.checkpoint import test_files


def state(step: int, num_floats: int = 100) -> dict[str, object]:
    return test_files.state(step, {"weight": torch.full((num_floats,), float(step))})


def write(writer: CheckpointWriter, *steps: int, is_best: bool = False) -> None:
    for step in steps:
        writer.write(step, HostCopy(state(step)), is_best=is_best)
    writer.wait()


def names(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def step_of(file: Path) -> int:
    files.verify(file)
    return files.load(file)["global_step"]


def test_a_copy_does_not_change_and_keeps_shared_tensors_shared() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    state = OrderedDict(weights=OrderedDict(a=weight.detach()), network={"a": weight.detach()}, row=weight[1])
    snapshot = HostCopy(state)
    weight.zero_()
    assert snapshot.state["weights"]["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert snapshot.state["network"]["a"] is snapshot.state["weights"]["a"]
    assert snapshot.state["row"].tolist() == [3, 4, 5]
    assert snapshot.num_bytes == (6 + 3) * 4
    assert type(snapshot.state) is type(snapshot.state["weights"]) is dict


def test_plain_values_open_safely_and_others_are_named(tmp_path: Path) -> None:
    numbers = (np.float64(0.5), np.int64(3), True, None)
    snapshot = HostCopy({"numbers": numbers, "shape": torch.Size([2]), "d": defaultdict(int, a=1)})
    assert snapshot.state == {"numbers": (0.5, 3, True, None), "shape": (2,), "d": {"a": 1}}
    assert [type(number) for number in snapshot.state["numbers"]] == [float, int, bool, type(None)]
    assert snapshot.foreign == []
    torch.save(snapshot.state, tmp_path / "x.ckpt")
    assert torch.load(tmp_path / "x.ckpt", weights_only=True) == snapshot.state
    foreign = HostCopy({"callbacks": {"Mine": {"folder": tmp_path, "names": {1, 2}, "rest": [["a"]]}}}).foreign
    assert foreign == ["/callbacks/Mine/folder (PosixPath)", "/callbacks/Mine/names (set)"]


def test_incomplete_files_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    write(CheckpointWriter(tmp_path, keep=2), 1)
    (tmp_path / "checkpoints/.step_00000002.ckpt.host.1.new").write_bytes(b"half")
    (tmp_path / ".last.ckpt.host.1.new").write_bytes(b"half")
    (tmp_path / "mine.new").touch()
    CheckpointWriter(tmp_path, keep=2)
    assert names(tmp_path) == ["checkpoints/step_00000001.ckpt", "last.ckpt", "mine.new"]


def test_a_run_that_went_back_leaves_no_later_steps_but_copies_of_the_user(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep=2)
    write(writer, 10, 20, 30)
    mine = shutil.copy(step_file(tmp_path, 20), tmp_path / "checkpoints/step_before_the_change.ckpt")
    assert step_of(files.find("auto", tmp_path)) == 30
    write(writer, 12)
    assert [step_of(file) for file in step_files(tmp_path)] == [12]
    assert step_of(mine) == 20
    assert step_of(tmp_path / "last.ckpt") == 12


def test_storage_that_fails_is_a_warning_and_the_next_save_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer, code = CheckpointWriter(tmp_path, keep=1), errno.ESTALE
    write(writer, 1, is_best=True)

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", fail)
        write(writer, 2, is_best=True)
    assert (writer.written_step, writer.lost_best) == (1, True)
    (warning,) = caplog.messages
    assert "step 2" in warning and f"{tmp_path}/checkpoints: {os.strerror(code)}" in warning
    assert names(tmp_path) == [BEST, "checkpoints/step_00000001.ckpt", LAST]
    assert {step_of(tmp_path / name) for name in (BEST, LAST)} == {1}
    write(writer, 3)
    assert step_of(tmp_path / "last.ckpt") == writer.written_step == 3


def test_a_file_that_reads_back_with_other_content_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = CheckpointWriter(tmp_path, keep=1)
    write(writer, 1)
    real = os.fsync

    def flip(handle: int) -> None:
        """A disk that keeps another bit than it was given."""
        real(handle)
        for path in tmp_path.glob("checkpoints/.step_00000002.ckpt.*.new"):
            content = path.read_bytes()
            path.write_bytes(content.replace(torch.full((100,), 2.0).numpy().tobytes(), bytes(400)))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", flip)
        write(writer, 2)
    assert len(caplog.messages) == writer.written_step == 1
    assert names(tmp_path) == ["checkpoints/step_00000001.ckpt", "last.ckpt"]


def write_for_ever(folder: Path) -> None:
    writer = CheckpointWriter(folder, keep=2)
    for step in range(1, 10_000):
        writer.write(step, HostCopy(state(step, 4_000_000)), is_best=False)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_in_the_middle_of_a_file(tmp_path: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(tmp_path,), daemon=True)
    child.start()
    deadline = time.monotonic() + 240
    while not [file for file in tmp_path.glob("checkpoints/.*.new") if "step_00000001" not in file.name]:
        assert child.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    child.join()
    newest = max(step_of(file) for file in step_files(tmp_path))
    assert step_of(files.find("auto", tmp_path)) == newest
    CheckpointWriter(tmp_path, keep=2)
    assert not list(tmp_path.rglob("*.new"))
