"""Other processes: a server that forks them with torch imported, pools, and their end."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess
from types import ModuleType
from typing import Any

FOR_CALLS = (
    "wandb.sdk.launch",
    "torchvision",
    "timm",
    "imagenet_opt.config.compose",
    "imagenet_opt.training.fit",
    "imagenet_opt.probe.testbed",
)
"""Modules that the server imports for calls (probe/isolated.py). None may start CUDA, which does not survive a fork.
W&B imports wandb.sdk.launch in every run; after torch that takes longer, because pydantic then searches all modules of
torch (before Python 3.13)."""
FOR_WORKERS = ("imagenet_opt.data.dataset",)
"""Modules that the server imports if workers need it first; a process has one server."""
_OF_THE_GROUP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that SLURM and terminals send to all processes. The server blocks them, because it must outlive its
processes, which may take long to end; they inherit the block."""

_has_server = False


@contextmanager
def blocked(*signals: signal.Signals) -> Iterator[None]:
    """Block these signals in this thread. Processes and threads that start meanwhile inherit the block; a signal that
    arrives meanwhile acts afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # may raise, from the handler of an earlier signal
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(parent: int | None = None, *, whole_group: bool = False) -> None:
    """From now on, end this process once the process that started it has ended, even if it was killed.

    The parent of a process of a server is the process that asked the server. parent: its id, if it may have ended
    already. whole_group: end all processes of this process's group.
    """
    parent = parent or os.getppid()

    def wait() -> None:
        if (starter := multiprocessing.parent_process()) is not None:
            starter.join()
        else:
            while os.getppid() == parent:
                time.sleep(1)
        if whole_group:
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="parent").start()


class ServerProcess(ForkServerProcess):
    """A process forked from the server. It has the environment that this process has at the start."""

    def start(self) -> None:
        start_server()
        self._environment = dict(os.environ)
        with _no_main_module():
            super().start()

    def run(self) -> None:
        set_environment(self._environment)
        super().run()


class ServerContext(ForkServerContext):
    """Context of multiprocessing for processes that must not be forks of this process, for example because it has
    opened an object storage. They have torch imported, and do not run the script of this process again."""

    Process = ServerProcess


def start_server(modules: tuple[str, ...] = FOR_WORKERS) -> None:
    """Start the server, if this process has none; it imports the modules meanwhile."""
    global _has_server
    if _has_server:
        return
    _has_server = True
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
    resource_tracker.ensure_running()  # unblocks signals
    before = dict(os.environ)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait starve other threads
    try:
        with blocked(*_OF_THE_GROUP), _no_main_module():
            forkserver.ensure_running()
    finally:
        set_environment(before)


def wait_for_server() -> None:
    """Wait until the server has imported its modules, so that no measurement includes this time."""
    process = ServerProcess(target=int)
    process.start()
    process.join()


@contextmanager
def pool(
    num: int, begin: Callable[..., None], arguments: tuple[Any, ...] = (), *, context: BaseContext | None = None
) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this process; of the server, unless `context` is given. begin(*arguments) is called first
    in each. Only this process reacts to Ctrl-C. An error within `with` kills them, because a read may hang for ever.
    """
    earlier = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(num, context or ServerContext(), _begin, (begin, arguments))
    try:
        with blocked(signal.SIGINT):  # a fork inherits it
            for _ in range(num):
                executor.submit(int)
        yield executor
    except BaseException:
        for child in set(multiprocessing.active_children()) - earlier:
            child.kill()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _begin(begin: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGINT})
    end_with_parent()
    begin(*arguments)


def set_environment(env: Mapping[str, str]) -> None:
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
