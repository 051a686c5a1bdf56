"""A process whose main thread hangs ends when another one of its run dies, and says why."""

import json
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from imagenet_opt.errors import TrainingError
from imagenet_opt.run.stop.ranks import RankWatchdog, address, listen

HANGING = """
import json, os, signal, sys, threading
from imagenet_opt.run.stop import ranks
from imagenet_opt.run.stop.ranks import RankWatchdog
ranks._HELLO_SECONDS = 100
rank, kind = int(sys.argv[1]), sys.argv[2]
os.environ["MASTER_ADDR"] = "127.0.0.1"

def broadcast(value):
    if rank == 0:
        print(json.dumps(value), flush=True)
        return value
    return json.loads(sys.argv[3])

peers = RankWatchdog(rank=rank, world_size=2, broadcast=broadcast, grace_seconds=0.05)
print("together", flush=True)
if sys.stdin.readline() == "close\\n":
    peers.close()
elif kind == "writes":
    threading.Thread(target=lambda: print(sys.stdin.readline()), name="checkpoint writer", daemon=True).start()
    print("writing", flush=True)
    threading.Event().wait()
elif kind == "fails":
    peers.failing(ValueError("no such\\nfile"))
    sys.exit(1)
print("and on", flush=True)
sys.stdin.readline()
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HANGING, *arguments]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def line(process: Any) -> str:
    return process.stdout.readline().strip()


def say(process: Any, text: str) -> None:
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def pair(kind: str, stray: bytes | None = None) -> list[subprocess.Popen[str]]:
    """Two processes that know each other. stray: what another connection says before the second has come; a
    third says nothing."""
    first = start("0", kind)
    address = line(first)
    port, _ = json.loads(address)
    with ExitStack() as strangers:
        if stray is not None:
            idle, talking = (strangers.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2))
            talking.sendall(stray)
            idle.setblocking(False)
        both = [first, start("1", kind, address)]
        assert [line(process) for process in both] == ["together", "together"]
        if stray is not None:
            with pytest.raises(BlockingIOError):  # rank 0 still waits for its word
                idle.recv(1)
    return both


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_other(victim: int) -> None:
    both = pair("killed")
    both[victim].send_signal(signal.SIGKILL)
    both[victim].communicate(timeout=60)
    other = both[1 - victim]
    assert other.wait(timeout=120) == 1
    _, err = other.communicate()
    assert f"TrainingError: rank {victim} has died" in err and "resumes from the last checkpoint" in err


def test_a_checkpoint_that_is_being_written_is_waited_for() -> None:
    first, second = pair("writes")
    say(first, "write")
    assert line(first) == "writing"
    second.kill()
    second.communicate(timeout=60)
    with pytest.raises(subprocess.TimeoutExpired):  # beyond its grace
        first.wait(timeout=1)
    assert first.communicate("done\n", timeout=120)[0] == "done\n\n"
    assert first.returncode == 1


def test_an_error_is_passed_on() -> None:
    first, second = pair("fails")
    say(second, "fail")
    second.communicate(timeout=60)
    assert first.wait(timeout=120) == 1
    assert "TrainingError: rank 1 ended: ValueError: no such file" in first.communicate()[1]


def test_an_orderly_end_leaves_the_other_alone() -> None:
    first, second = pair("killed", stray=b"\xff\xfe\n")
    say(second, "close")
    assert line(second) == "and on"
    assert second.communicate("\n", timeout=60)[1] == ""
    say(first, "close")
    assert line(first) == "and on"
    _, err = first.communicate("\n", timeout=60)
    assert first.returncode == 0 and err.count("\n") == 1 and "not from this run" in err


@pytest.mark.parametrize(
    ("host", "here", "listens", "reached_by"),
    [
        ("127.0.0.1", "1", "127.0.0.1", ["127.0.0.1"]),
        ("::1", "2", "::1", ["::1"]),
        ("localhost", "1", "127.0.0.1", ["127.0.0.1"]),
        ("node7", "2", "127.0.0.1", ["127.0.0.1"]),  # torchrun --standalone
        ("node7", "1", "::", ["127.0.0.1", "::1"]),
    ],
)
def test_a_run_on_one_machine_listens_on_that_machine_only(
    host: str, here: str, listens: str, reached_by: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    with listen(address(2), world_size=2) as server:
        assert server.getsockname()[0] == listens
        for each in reached_by:
            socket.create_connection((each, server.getsockname()[1])).close()


def test_a_rank_that_cannot_reach_rank_0_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(TrainingError) as raised:
        RankWatchdog(rank=3, world_size=4, broadcast=lambda _: (port, "word"))
    message = str(raised.value)
    assert f"rank 3 cannot connect to rank 0 at 127.0.0.1:{port} (" in message
    assert "'~callbacks.preemption'" in message and "\n" not in message
