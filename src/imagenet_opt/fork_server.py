"""A process that has imported torch and forks others in milliseconds: Python programs, and workers of a loader."""

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from types import ModuleType
from typing import Any

from imagenet_opt.blocked_signals import blocked

IMPORTED = (
    "wandb.sdk.launch",
    "torchvision",
    "timm",
    "imagenet_opt.config.compose",
    "imagenet_opt.training.fit",
    "imagenet_opt.probe.testbed",
)
"""Modules that the server imports. None may start CUDA, which does not survive a fork. W&B imports wandb.sdk.launch in
every run; after torch that takes longer, because pydantic then searches all modules of torch (before Python 3.13)."""
IMPORTED_BY_WORKERS = ("imagenet_opt.data.dataset",)
"""Modules that a server for workers of a loader imports, if this process has no server yet."""
READ_AT_IMPORT = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "LD_", "MALLOC_", "TORCH_LOGS", "TORCH_COMPILE_DEBUG")
"""Prefixes of environment variables that libraries read during their import. A program with other values of these
variables needs a new interpreter."""
_DEFAULTS = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Variables that all programs set unless the user does. Threads that spin while they wait starve other threads."""
_OF_THE_GROUP = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that SLURM and terminals send to all processes. The server blocks them, because it must outlive its programs,
which may take long to end."""

_server: dict[str, str] | None = None
"""Environment variables of the server; None until this process has started its server."""


class ForkedProgram:
    """A program of this Python with the interface of subprocess.Popen.

    arguments: the words after the interpreter: a script, or "-m" and a module, and its arguments. stdin, stdout,
    stderr: open file descriptors, which the caller may close afterwards. new_session: start_new_session of Popen. If
    the READ_AT_IMPORT variables of `env` differ from the server's, use `start`.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        cwd: str | Path | None = None,
        new_session: bool = False,
    ) -> None:
        self.args = [sys.executable, *arguments]
        files = tuple(map(_Descriptor, (stdin, stdout, stderr)))
        settings = (arguments, str(cwd or Path.cwd()), dict(env), files, new_session)
        self._process = multiprocessing.get_context("forkserver").Process(target=_run, args=settings)
        _ensure_server(env, IMPORTED)
        with _no_main_module():
            self._process.start()
        self.pid: int = self._process.pid  # type: ignore[assignment]

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Program = ForkedProgram | subprocess.Popen[bytes]


def start(arguments: list[str], *, env: Mapping[str, str], **others: Any) -> Program:
    """Start `python ARGUMENTS`, by a fork if the environment allows a fork. others: arguments of ForkedProgram."""
    if _server is None or _at_import(env) == _at_import(_server):
        return ForkedProgram(arguments, env=env, **others)
    others["start_new_session"] = others.pop("new_session", False)
    return subprocess.Popen([sys.executable, *arguments], env=env, **others)


def _at_import(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in (_DEFAULTS | dict(env)).items() if name.startswith(READ_AT_IMPORT)}


class WorkerProcess(ForkServerProcess):
    """A process forked from the server, which does not run the script of this process again. It has the environment
    that this process has at the start."""

    def start(self) -> None:
        start_for_workers()
        self._environment = dict(os.environ)
        with _no_main_module():
            super().start()

    def run(self) -> None:
        _set_environment(self._environment)
        super().run()


class WorkerContext(ForkServerContext):
    """For the workers of a DataLoader that must not be forks of this process."""

    Process = WorkerProcess


def start_for_workers() -> None:
    """Start the server, if this process has none; it imports its modules meanwhile."""
    _ensure_server(os.environ, IMPORTED_BY_WORKERS)


def wait_for_workers() -> None:
    """Wait until the server has imported its modules, so that no measurement includes this time."""
    process = WorkerProcess(target=int)
    process.start()
    process.join()


def _ensure_server(env: Mapping[str, str], imported: Sequence[str]) -> None:
    """Start the server, if this process has none, with the environment of the first program."""
    global _server
    if _server is not None:
        return
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(imported))
    resource_tracker.ensure_running()  # unblocks signals
    before, _server = dict(os.environ), dict(env)
    with blocked(*_OF_THE_GROUP):
        try:
            _set_environment(_DEFAULTS | _server)
            forkserver.ensure_running()
        finally:
            _set_environment(before)


def _set_environment(env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide the caller's script from multiprocessing, which would run the script again in the new process."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class _Descriptor:
    """A file descriptor that pickle sends to the new process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _received, (DupFd(self.number),)


def _received(sent: Any) -> int:
    number: int = sent.detach()
    return number


def _run(arguments: list[str], cwd: str, env: dict[str, str], files: tuple[int, ...], new_session: bool) -> None:
    """In the new process: run `arguments` as `python ARGUMENTS` would."""
    multiprocessing.set_start_method(None, force=True)  # multiprocessing passes on the caller's method, forkserver
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    gc.freeze()
    _forget_exit_functions()
    if new_session:
        os.setsid()
    os.chdir(cwd)
    _set_environment(env)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.path[:0] = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder not in ("", *sys.path)]
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing does not call them


def _forget_exit_functions() -> None:
    """Drop the exit functions of the server's modules, which would remove temporary folders that all programs share."""
    atexit._clear()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
