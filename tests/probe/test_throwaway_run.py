import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_opt.probe.throwaway_run import removed_afterwards, run_folder
from imagenet_opt.run.checkpoint.writer import CheckpointWriter, HostCopy
from tests.processes import run_script

KILLED = """
import os, signal
from omegaconf import OmegaConf
from imagenet_opt.probe.throwaway_run import run_folder
with run_folder(OmegaConf.create({"trainer": {}, "callbacks": {}})) as config:
    open(config.run_folder + "/checkpoint", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_killed_process_is_removed_by_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with removed_afterwards() as variables:
        end = run_script(KILLED, [], cwd=tmp_path, environment=os.environ | variables)
        assert end.returncode == -signal.SIGKILL
        assert list(Path("runs").rglob("checkpoint"))
    assert not list(Path("runs").iterdir())


def test_a_checkpoint_that_is_being_written_ends_before_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Late(HostCopy):
        def wait(self) -> None:
            copied.wait()

    copied = threading.Event()
    monkeypatch.chdir(tmp_path)
    config = OmegaConf.create({"trainer": {}, "callbacks": {}})
    needed: dict[str, Any] = dict.fromkeys(("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks"))
    with pytest.raises(KeyboardInterrupt), run_folder(config) as changed:
        writer = CheckpointWriter(Path(changed.run_folder), keep=1)
        writer.write(3, Late(needed | {"global_step": 3, "network": {}}), is_best=False)
        threading.Timer(0.2, copied.set).start()
        raise KeyboardInterrupt
    writer.wait()
    assert writer.written_step == 3
    assert not caplog.records and not list(tmp_path.iterdir())


def test_a_temporary_run_has_no_mirror(tmp_path: Path) -> None:
    config = OmegaConf.create({"trainer": {}, "callbacks": {"checkpoint": {"mirror": "s3://bucket/run", "keep": 1}}})
    with run_folder(config, within=tmp_path) as changed:
        assert changed.callbacks.checkpoint == {"mirror": None, "keep": 1}
