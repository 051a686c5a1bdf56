import os
import signal
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from imagenet_opt.probe.throwaway_run import removed_afterwards, run_folder
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


def test_a_temporary_run_has_no_mirror(tmp_path: Path) -> None:
    config = OmegaConf.create({"trainer": {}, "callbacks": {"checkpoint": {"mirror": "s3://bucket/run", "keep": 1}}})
    with run_folder(config, within=tmp_path) as changed:
        assert changed.callbacks.checkpoint == {"mirror": None, "keep": 1}
