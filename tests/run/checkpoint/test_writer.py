"""A full disk, a kill, a clock that goes back: the last good checkpoint stays, and the run continues."""

import errno
import os
import shutil
import sys
import time
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from imagenet_opt.run.checkpoint import files
from imagenet_opt.run.checkpoint.names import BEST, LAST, step_file, step_files
from imagenet_opt.run.checkpoint.writer import CheckpointWriter, HostCopy
from tests.processes import Forked
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


def test_numbers_of_numpy_and_kinds_of_dicts_become_plain_and_the_file_opens_safely(tmp_path: Path) -> None:
    numbers = (np.float64(0.5), np.int64(3), True, None)
    snapshot = HostCopy({"numbers": numbers, "shape": torch.Size([2]), "d": defaultdict(int, a=1)})
    assert snapshot.state == {"numbers": (0.5, 3, True, None), "shape": (2,), "d": {"a": 1}}
    assert [type(number) for number in snapshot.state["numbers"]] == [float, int, bool, type(None)]
    assert snapshot.foreign == []
    torch.save(snapshot.state, tmp_path / "x.ckpt")
    assert torch.load(tmp_path / "x.ckpt", weights_only=True) == snapshot.state


def test_objects_that_cannot_be_opened_safely_are_named(tmp_path: Path) -> None:
    names = ["a"]
    snapshot = HostCopy({"callbacks": {"Mine": {"folder": tmp_path, "names": {1, 2}, "rest": [names]}}})
    names.append("b")
    assert snapshot.foreign == ["/callbacks/Mine/folder (PosixPath)", "/callbacks/Mine/names (set)"]
    assert snapshot.state["callbacks"]["Mine"] == {"folder": tmp_path, "names": {1, 2}, "rest": [["a"]]}


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


@pytest.mark.parametrize(("call", "code"), [("fsync", errno.EIO), ("fsync", errno.EDQUOT), ("replace", errno.ESTALE)])
def test_storage_that_fails_is_a_warning_and_the_next_save_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str, code: int
) -> None:
    writer = CheckpointWriter(tmp_path, keep=1)
    write(writer, 1, is_best=True)

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        write(writer, 2, is_best=True)
    assert (writer.written_step, writer.lost_best) == (1, True)
    (warning,) = [record.getMessage() for record in caplog.records]
    reason = f"{tmp_path}/checkpoints: {os.strerror(code)}; the checkpoint needs 17 MB. "
    assert f"step 2 could not be written to {reason}" in warning
    assert "The next save, if one is due, tries again" in warning
    assert [file.name for file in step_files(tmp_path)] == ["step_00000001.ckpt"]
    assert not list(tmp_path.rglob("*.new"))
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
    assert "does not match its checksum" in caplog.text and writer.written_step == 1
    assert names(tmp_path) == ["checkpoints/step_00000001.ckpt", "last.ckpt"]


CHILD = """
import sys
from pathlib import Path
from imagenet_opt.run.checkpoint.writer import CheckpointWriter, HostCopy
from tests.run.checkpoint.test_writer import state

writer = CheckpointWriter(Path(sys.argv[1]), keep=2)
for step in range(1, 10_000):
    writer.write(step, HostCopy(state(step, 4_000_000)), is_best=False)
"""


def environment() -> dict[str, str]:
    root = Path(__file__).parents[3]
    paths = [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.slow
def test_killed_in_the_middle_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    deadline = time.monotonic() + 240
    command = [sys.executable, str(tmp_path / "child.py"), str(tmp_path)]
    child = Forked(command, stdout=sys.__stdout__, env=environment(), cwd=tmp_path)
    try:
        while not [file for file in tmp_path.glob("checkpoints/.*.new") if "step_00000001" not in file.name]:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    newest = max(step_of(file) for file in step_files(tmp_path))
    assert step_of(files.find("auto", tmp_path)) == newest
    CheckpointWriter(tmp_path, keep=2)
    assert not list(tmp_path.rglob("*.new"))
