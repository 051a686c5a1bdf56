"""Functions in processes of their own, which start further ones as Lightning does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import __main__
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.isolated import Hung, call_isolated

REPOSITORY = Path(__file__).parents[2]
HERE = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}


def second_rank() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", __main__.__spec__.name, *sys.argv[1:]]
    return subprocess.Popen(command, env=os.environ | {"LOCAL_RANK": "1"})


def agree(job: str) -> str:
    """Both processes answer, the second before the first."""
    if "LOCAL_RANK" not in os.environ:
        second_rank().wait()
    return f"{job} from {os.environ.get('LOCAL_RANK', 'the first')}"


def disagree(job: str) -> None:
    """The second process fails; the first is then killed, as Lightning does."""
    if "LOCAL_RANK" in os.environ:
        raise ConfigError(f"{job} cannot be")
    assert second_rank().wait() == 1
    os.kill(os.getpid(), signal.SIGKILL)


def hang(job: str) -> None:
    if "LOCAL_RANK" not in os.environ:
        Path(job).write_text(f"{os.getpid()} {second_rank().pid}")
    signal.pause()


def die(job: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_the_answer_of_the_first_process_counts() -> None:
    assert call_isolated(f"{__name__}.agree", "words", environment=HERE) == "words from the first"


@pytest.mark.parametrize(
    ("function", "job", "error", "words", "limits"),
    [
        pytest.param(f"{__name__}.disagree", "words", ConfigError, "words cannot be", {}, marks=pytest.mark.slow),
        (f"{__name__}.die", "words", TurnFailed, "killed by signal 9", {}),
        ("builtins.int", "words", TurnFailed, "^ValueError: ", {}),
        ("time.sleep", 900, Hung, r"not finished after 0\.1 s", {"limit_seconds": 0.1}),
    ],
)
def test_other_ends_have_a_reason(
    function: str, job: Any, error: type[Exception], words: str, limits: dict[str, float]
) -> None:
    with pytest.raises(error, match=words):
        call_isolated(function, job, environment=HERE, **limits)


HANGS = """
from imagenet_opt.probe import isolated
isolated.FOR_CALLS = ()  # whose import takes long
isolated.call_isolated("{function}hang", "{file}")
"""


@pytest.mark.slow
def test_all_processes_end_with_the_caller(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    program = HANGS.format(function=f"{__name__}.", file=file)
    caller = subprocess.Popen([sys.executable, "-c", program], env=os.environ | HERE)
    deadline = time.monotonic() + 600  # of a busy machine
    while not (file.exists() and len(file.read_text().split()) == 2) and time.monotonic() < deadline:
        assert caller.poll() is None
        time.sleep(0.05)
    caller.kill()
    caller.wait()
    pids = [int(pid) for pid in file.read_text().split()]
    while any(map(_is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_is_alive, pids))


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
