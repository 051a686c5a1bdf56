"""Several processes of one run, forked from the test: no interpreter starts anew."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only

from imagenet_opt.errors import ImagenetOptError

_SECONDS = 120


def on_ranks(work: Callable[[int], Any], num_ranks: int = 2) -> list[Any]:
    """What `work(rank)` returns in each process, or the ImagenetOptError that it raises.

    Any other error is raised here. Results are small: a pipe's buffer holds them.
    In `work` a Trainer with `devices=num_ranks, strategy="ddp"` joins the processes with gloo.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()
    processes = [context.Process(target=_run, args=(work, rank, num_ranks, port, results)) for rank in range(num_ranks)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(_SECONDS)
            assert process.exitcode == 0, f"a process ended with {process.exitcode} (None: it hangs)"
        found = dict(results.get() for _ in processes)
        for error in found.values():
            if isinstance(error, Exception) and not isinstance(error, ImagenetOptError):
                raise error
        return [found[rank] for rank in range(num_ranks)]
    finally:
        for process in processes:
            process.kill()


def _run(work: Callable[[int], Any], rank: int, num_ranks: int, port: int, results: Any) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NODE_RANK": "0",
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    rank_zero_only.rank = rank
    try:
        results.put((rank, work(rank)))
    except Exception as error:
        results.put((rank, error))
