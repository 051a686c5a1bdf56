"""Forked processes for tests: no new interpreter starts and imports torch again."""

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only

from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.fork_server import ForkedProgram

_SECONDS = 900
_REPOSITORY = Path(__file__).parents[1]


class Forked(ForkedProgram):
    """Like subprocess.Popen, for programs of this Python; torch and Lightning are already imported.

    command: the interpreter, then a script's file or `-m` and a module. By default stderr goes to `stdout`, and
    stdin is empty. Processes that the program itself starts are not forked.
    """

    def __init__(
        self,
        command: list[str],
        *,
        stdout: IO[Any],
        stderr: Any = None,
        stdin: Any = None,
        env: Mapping[str, str],
        cwd: Path | None = None,
        **_: Any,
    ) -> None:
        with open(os.devnull, "rb") as nothing:
            files = (nothing if stdin in (None, subprocess.DEVNULL) else stdin, stdout, stderr or stdout)
            numbers = [file if isinstance(file, int) else file.fileno() for file in files]
            names = dict(zip(("stdin", "stdout", "stderr"), numbers, strict=True))
            super().__init__(command[1:], env=env, cwd=cwd, new_session=True, **names)


def run_train(arguments: list[str], *, cwd: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run `python train.py ARGUMENTS` with these variables, forked."""
    return run_forked([str(_REPOSITORY / "train.py"), *arguments], cwd=cwd, environment=environment)


def run_forked(
    arguments: list[str], *, cwd: Path, environment: Mapping[str, str], terminal: Any = None
) -> "subprocess.CompletedProcess[str]":
    """Run `python ARGUMENTS` with these variables, forked. terminal: replaces stdin and stderr."""
    command = [sys.executable, *arguments]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = Forked(command, stdout=out, stderr=terminal or err, stdin=terminal, env=environment, cwd=cwd)
        try:
            code = process.wait(300)
        finally:
            process.kill()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
        return subprocess.CompletedProcess(command, code, *texts)


def run_script(
    text: str, arguments: list[str], *, cwd: Path, environment: Mapping[str, str], terminal: Any = None
) -> "subprocess.CompletedProcess[str]":
    """Run `python -c TEXT ARGUMENTS` with these variables, forked."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(text)
        script.flush()
        return run_forked([script.name, *arguments], cwd=cwd, environment=environment, terminal=terminal)


def on_ranks(work: Callable[[int], Any], num_ranks: int = 2) -> list[Any]:
    """The result of `work(rank)` in each process, or its ImagenetOptError. Any other error is raised in the caller.

    Results must fit into the buffer of a pipe. In `work`, a Trainer with `devices=num_ranks, strategy="ddp"` joins the
    processes with gloo.
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
        by_rank = dict(results.get() for _ in processes)
        for error in by_rank.values():
            if isinstance(error, Exception) and not isinstance(error, ImagenetOptError):
                raise error
        return [by_rank[rank] for rank in range(num_ranks)]
    finally:
        for process in processes:
            process.kill()


def _run(work: Callable[[int], Any], rank: int, num_ranks: int, port: int, results: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    torch.set_num_threads(1)  # other threads of libgomp do not survive the fork
    rank_zero_only.rank = rank
    try:
        results.put((rank, work(rank)))
    except Exception as error:
        results.put((rank, error))
