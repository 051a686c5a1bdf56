"""Processes of their own that are forked, so that no interpreter starts and imports anew."""

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only

from imagenet_opt.errors import ImagenetOptError

_SECONDS = 120
_REPOSITORY = Path(__file__).parents[1]
_IMPORTED = ["imagenet_opt.config.build", "imagenet_opt.training.summary", "imagenet_opt.config.compose"]
"""By the process that `Forked` forks; most of what the programs here import."""


class Forked:
    """As subprocess.Popen, for programs of this Python, which find torch and Lightning imported.

    command: the interpreter, then a script's file or `-m` and a module. stdout, stderr, stdin: files that have a name;
    stderr goes where stdout goes, and there is no input, unless they are said. Libraries see the variables of the first
    process that was started so, which gives each thread pool one thread; processes that the program starts itself are
    started anew.
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
        **others: Any,
    ) -> None:
        self.args = command
        out = stdout.name
        files = [getattr(stdin, "name", os.devnull), out, getattr(stderr, "name", out)]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTED)
        self._process = context.Process(target=_program, args=(command[1:], cwd or Path.cwd(), dict(env), files))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
            self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def run_train(arguments: list[str], *, cwd: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """`python train.py ARGUMENTS` with these variables, forked."""
    return run_forked([str(_REPOSITORY / "train.py"), *arguments], cwd=cwd, environment=environment)


def run_forked(
    arguments: list[str], *, cwd: Path, environment: Mapping[str, str], terminal: Any = None
) -> "subprocess.CompletedProcess[str]":
    """`python ARGUMENTS` with these variables, forked. terminal: in the place of stdin and stderr."""
    command = [sys.executable, *arguments]
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        process = Forked(command, stdout=out, stderr=terminal or err, stdin=terminal, env=environment, cwd=cwd)
        try:
            code = process.wait(300)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def run_script(
    text: str, arguments: list[str], *, cwd: Path, environment: Mapping[str, str], terminal: Any = None
) -> "subprocess.CompletedProcess[str]":
    """`python -c TEXT ARGUMENTS` with these variables, forked."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(text)
        script.flush()
        return run_forked([script.name, *arguments], cwd=cwd, environment=environment, terminal=terminal)


def _program(arguments: list[str], cwd: Path, environment: dict[str, str], files: list[str]) -> None:
    multiprocessing.set_start_method(None, force=True)  # the default: this process has that of its parent
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ |= environment
    for number, (file, mode) in enumerate(zip(files, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)):
        os.dup2(os.open(file, mode | os.O_APPEND), number)
    sys.stdin = os.fdopen(0)
    sys.path[:0] = [str(_REPOSITORY), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


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
