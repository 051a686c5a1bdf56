"""A process whose main thread hangs ends when another one of its run dies, and says why."""

import logging
import multiprocessing
import os
import socket
import sys
import threading
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.errors import TrainingError
from imagenet_opt.run.stop import ranks

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
SECONDS = 120
"""To wait for what comes within seconds."""


class Rank:
    """A forked process that watches the other one, and does what it is told."""

    def __init__(self, rank: int, errors: Path, port_and_token: Any = None) -> None:
        context = multiprocessing.get_context("fork")
        self.here, there = context.Pipe()
        self.errors = errors / f"{rank}"
        self.process: Any = context.Process(target=self.live, args=(rank, there, port_and_token))
        self.process.start()
        there.close()

    def live(self, rank: int, line: Connection, port_and_token: Any) -> None:
        self.here.close()
        sys.stderr = self.errors.open("w", buffering=1)
        logging.getLogger().handlers.clear()
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        ranks._HELLO_SECONDS = 100

        def broadcast(value: Any) -> Any:
            if rank == 0:
                line.send(value)
            return value if rank == 0 else port_and_token

        peers = ranks.RankWatchdog(rank=rank, world_size=2, broadcast=broadcast, grace_seconds=0.05)
        line.send("together")
        told = line.recv()
        if told == "close":
            peers.close()
        elif told == "write":
            threading.Thread(target=lambda: line.send(line.recv()), name="checkpoint writer", daemon=True).start()
            line.send("writing")
            threading.Event().wait(SECONDS)
        elif told == "fail":
            peers.failing(ValueError("no such\nfile"))
            os._exit(1)
        line.send("and on")
        line.recv()

    def status(self, seconds: float = SECONDS) -> int | None:
        self.process.join(seconds)
        return self.process.exitcode


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    """Two processes that know each other. Before the second comes, one connection says nothing and another nonsense."""
    first = Rank(0, tmp_path)
    port, token = first.here.recv()
    with ExitStack() as strangers:
        idle, talking = (strangers.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2))
        talking.sendall(b"\xff\xfe\n")
        idle.setblocking(False)
        both = [first, Rank(1, tmp_path, (port, token))]
        assert [rank.here.recv() for rank in both] == ["together", "together"]
        with pytest.raises(BlockingIOError):  # rank 0 still waits for its word
            idle.recv(1)
    yield both
    for rank in both:
        rank.process.kill()
        rank.process.join()


def test_a_checkpoint_that_is_being_written_is_waited_for(pair: list[Rank]) -> None:
    pair[0].here.send("write")
    assert pair[0].here.recv() == "writing"
    pair[1].process.kill()
    assert pair[0].status(1) is None  # beyond its grace
    pair[0].here.send("done")
    assert pair[0].here.recv() == "done" and pair[0].status() == 1
    assert "TrainingError: rank 1 " in pair[0].errors.read_text()


def test_an_error_is_passed_on(pair: list[Rank]) -> None:
    pair[1].here.send("fail")
    assert pair[0].status() == 1
    assert "TrainingError: rank 1 ended: ValueError: no such file" in pair[0].errors.read_text()


def test_an_orderly_end_leaves_the_other_alone(pair: list[Rank]) -> None:
    for rank in reversed(pair):
        rank.here.send("close")
        assert rank.here.recv() == "and on"
        rank.here.send("end")
        assert rank.status() == 0
        assert rank is pair[0] or pair[0].status(1) is None  # beyond its grace
    first, second = (rank.errors.read_text() for rank in pair)
    assert second == "" and first.count("\n") == 1, "of the stranger alone"


@pytest.mark.parametrize(
    ("host", "here", "listens", "reached_by"),
    [
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
    with ranks.listen(ranks.address(2), world_size=2) as server:
        assert server.getsockname()[0] == listens
        for each in reached_by:
            socket.create_connection((each, server.getsockname()[1])).close()


def test_a_rank_that_cannot_reach_rank_0_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(TrainingError, match=rf"^rank 3 .*127\.0\.0\.1:{port} .*'~callbacks\.preemption'[^\n]*$"):
        ranks.RankWatchdog(rank=3, world_size=4, broadcast=lambda _: (port, "word"))
