"""Forked processes for tests: no new interpreter starts and imports torch again."""

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only

from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.processes import FOR_CALLS, ServerProcess, start_server

_SECONDS = 900
_REPOSITORY = Path(__file__).parents[1]


class Forked:
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
        start_server(FOR_CALLS)
        with open(os.devnull, "rb") as nothing:
            files = (nothing if stdin in (None, subprocess.DEVNULL) else stdin, stdout, stderr or stdout)
            sent = tuple(_Descriptor(file if isinstance(file, int) else file.fileno()) for file in files)
            self._process = ServerProcess(target=_program, args=(command[1:], str(cwd or Path.cwd()), dict(env), sent))
            self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked program", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Descriptor:
    """A file descriptor that pickle sends to the new process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _received, (DupFd(self.number),)


def _received(sent: Any) -> int:
    return sent.detach()  # type: ignore[no-any-return]


def _program(arguments: list[str], cwd: str, env: dict[str, str], files: tuple[int, ...]) -> None:
    """In the new process: run `arguments` as `python ARGUMENTS` would."""
    multiprocessing.set_start_method(None, force=True)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    gc.freeze()
    atexit._clear()  # the server's modules would remove temporary folders that all programs share
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    atexit.register(weakref.finalize._exitfunc)
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    rank_zero_only.rank = int(env.get("RANK", "0"))  # Lightning sets it when it is imported
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.path[:0] = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder not in ("", *sys.path)]
    module = arguments[0] == "-m"
    sys.argv = arguments[module:]
    try:
        if module:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing does not call them


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


def path_with(folder: Path, **scripts: str) -> str:
    """A PATH with these shell scripts before all other programs."""
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


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
