import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from imagenet_opt.probe.throwaway_run import removed_afterwards

KILLED = """
import os, signal
from omegaconf import OmegaConf
from imagenet_opt.probe.throwaway_run import run_folder
with run_folder(OmegaConf.create({"trainer": {}, "callbacks": {}})) as config:
    open(config.run_folder + "/checkpoint", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_leaves_is_removed_by_the_one_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with removed_afterwards() as variables:
        end = subprocess.run([sys.executable, "-c", KILLED], env=os.environ | variables)
        assert end.returncode == -signal.SIGKILL
        assert list(Path("runs").rglob("checkpoint"))
    assert not list(Path("runs").iterdir())
