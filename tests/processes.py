"""Processes of their own that are forked, so that no interpreter starts and imports anew."""

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only

from imagenet_opt.errors import ImagenetOptError

_SECONDS = 120
_REPOSITORY = Path(__file__).parents[1]
_IMPORTED = ["imagenet_opt.cli.build", "imagenet_opt.cli.summary", "imagenet_opt.cli.composition"]
"""By the process that those of `run_train` are forked from; most of what train.py imports."""


def run_train(arguments: list[str], *, cwd: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """`python train.py ARGUMENTS` with these variables, in a process that has imported torch and Lightning already.

    With no terminal and no input. Each thread pool has one thread. Processes that train.py starts are started anew.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    with tempfile.TemporaryDirectory() as folder, _variables(environment):
        files = [Path(folder) / name for name in ("stdout", "stderr")]
        process = context.Process(target=_train, args=(arguments, cwd, environment, files))
        process.start()
        process.join(300)
        try:
            assert process.exitcode is not None, f"train.py hangs: {files[1].read_text()}"
        finally:
            process.kill()
        words = [sys.executable, "train.py", *arguments]
        return subprocess.CompletedProcess(words, process.exitcode, *(file.read_text() for file in files))


@contextmanager
def _variables(environment: dict[str, str]) -> Iterator[None]:
    """As they are for the server when it starts: its libraries read them then."""
    before = dict(os.environ)
    os.environ |= environment
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def _train(arguments: list[str], cwd: Path, environment: dict[str, str], files: list[Path]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ |= environment
    for number, file in zip((1, 2), files, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0)
    script = _REPOSITORY / "train.py"
    sys.path[:0] = [str(_REPOSITORY), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


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
    torch.set_num_threads(1)  # libgomp's other threads, if the test has some, do not survive the fork
    rank_zero_only.rank = rank
    try:
        results.put((rank, work(rank)))
    except Exception as error:
        results.put((rank, error))
