"""The watch command as a user types it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from imagenet_opt.cli.watch import give_way, main, parse
from imagenet_opt.errors import ConfigError
from tests.watch.runs import write_run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "0"], "--port 0 is no port; expected 1 to 65535, such as 8000"),
        (["--port", "8000", "--terminal"], "--port is for the page; leave it out, or leave out --terminal"),
        (["--prot"], "unrecognized arguments: --prot (imagenet-opt watch --help)"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(arguments)
    assert str(error.value) == message


def test_a_folder_without_a_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path} is no run: it has neither metrics.csv nor"):
        main([str(tmp_path)])
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "the tests that follow run as before"


@pytest.mark.slow
def test_ctrl_c_ends_the_server_and_the_newest_run_is_the_default(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/mine")
    command = [sys.executable, "-m", "imagenet_opt.cli.main", "watch"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stdout is not None and watcher.stderr is not None
            assert watcher.stdout.readline().startswith("runs/mine: http://127.0.0.1:")
            assert os.sched_getscheduler(watcher.pid) == os.SCHED_IDLE
            watcher.send_signal(signal.SIGINT)
            assert watcher.wait(60) == 0
            assert watcher.stderr.read() == ""
        finally:
            watcher.kill()
    once = subprocess.run([*command, "--terminal"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "mine: The run ended early" in once.stdout and "2.710" in once.stdout


def test_where_the_policy_is_refused_the_watcher_has_the_lowest_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    given: list[int] = []
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "nice", given.append)
    give_way()
    assert given == [19]
