"""Two processes start in one run folder: the second waits and is refused."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagenet_opt.errors import ConfigError, RunFolderError
from imagenet_opt.file_lock import lock_file
from imagenet_opt.training.folder_lock import FILE, lock_folder, removed_if_refused

LOCK = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
# The import of Lightning takes seconds.
sys.modules["lightning.fabric.utilities.rank_zero"] = SimpleNamespace(rank_zero_only=SimpleNamespace(rank=0))
from imagenet_opt.training.folder_lock import lock_folder
lock_folder(Path(sys.argv[1]), wait_seconds=0)
"""
FIRST = f"""{LOCK}
if os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def first(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that trains in the folder, and has a worker."""
    process = subprocess.Popen([sys.executable, "-c", FIRST, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    yield process
    os.kill(worker, 9)
    process.kill()
    process.communicate()


def test_a_second_start_is_refused_until_the_first_is_killed(
    first: subprocess.Popen[str], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level("INFO"), pytest.raises(RunFolderError, match=rf"{tmp_path}.*hydra\.run\.dir="):
        lock_folder(tmp_path, wait_seconds=0.1)
    assert len(caplog.messages) == 1, "it says that it waits"
    monkeypatch.setattr("lightning.fabric.utilities.rank_zero.rank_zero_only.rank", 1)
    lock_folder(tmp_path, wait_seconds=0)  # rank 1 takes no lock
    first.kill()
    first.wait()
    lock_file(tmp_path / FILE).release()  # the worker of the first process still lives
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600  # whoever can open the file could lock it


def refused_start(folder: Path, *files: str) -> None:
    """A start in a folder with Hydra's files that writes more files and then fails."""
    (folder / ".hydra").mkdir(parents=True)
    with pytest.raises(ConfigError), removed_if_refused(folder):
        lock_folder(folder, wait_seconds=0)
        for name in files:
            (folder / name).touch()
        raise ConfigError("refused")


def test_a_refused_start_keeps_only_a_folder_with_files_of_a_run(tmp_path: Path) -> None:
    refused_start(tmp_path / "new", "train.log")
    assert not (tmp_path / "new").exists()
    refused_start(tmp_path / "begun", "metrics.csv")
    assert (tmp_path / "begun/metrics.csv").exists()
