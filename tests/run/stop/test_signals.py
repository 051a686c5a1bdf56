"""What signals do to a process that trains."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from imagenet_opt.errors import Preempted
from imagenet_opt.run.stop.signals import StopRequest


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    stop = StopRequest()
    stop.install()
    yield stop
    stop.restore()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_stops_at_once_where_nothing_is_lost(stop: StopRequest, number: int) -> None:
    with pytest.raises(Preempted):
        signal.raise_signal(number)
    signal.raise_signal(signal.SIGTERM)  # cleaning up is not disturbed
    assert stop.why == number


def test_within_a_step_it_waits_for_the_check_and_after_the_run_it_changes_nothing(stop: StopRequest) -> None:
    stop.over = True
    signal.raise_signal(signal.SIGTERM)
    stop.check()
    stop.over = stop.at_once = False
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Preempted, match="SIGUSR1"):
        stop.check()


SAVING = """
import sys
from imagenet_opt.run.stop.signals import stop
stop.install()
stop.at_once = False
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_second_ctrl_c_ends_the_process_now() -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", SAVING], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    process.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT and "Ctrl-C" in err
