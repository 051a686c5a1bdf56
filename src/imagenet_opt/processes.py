"""Other processes: calls of functions, pools, a server that forks them with torch imported, and their end."""

import gc
import json
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from imagenet_opt.errors import ImagenetOptError, last_error_line

FOR_CALLS = (
    "wandb.sdk.launch",
    "torchvision",
    "timm",
    "imagenet_opt.config.compose",
    "imagenet_opt.training.fit",
    "imagenet_opt.probe.testbed",
)
"""Modules that the server imports for calls. None may start CUDA, which does not survive a fork. W&B imports
wandb.sdk.launch in every run; after torch that takes longer, because pydantic then searches all modules of torch
(before Python 3.13)."""
FOR_WORKERS = ("imagenet_opt.data.dataset",)
"""Modules that the server imports if workers need it first; a process has one server."""
READ_AT_IMPORT = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "LD_", "MALLOC_", "TORCH_LOGS", "TORCH_COMPILE_DEBUG")
"""Prefixes of environment variables that libraries read during their import. A call with other values of these
variables needs a new interpreter."""
_DEFAULTS = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Variables of the server unless the user sets them. Threads that spin while they wait starve other threads."""
_OF_THE_GROUP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that SLURM and terminals send to all processes. The server blocks them, because it must outlive its
processes, which may take long to end; they inherit the block."""
_CLEAN_UP_SECONDS = 3
_JOB, _ANSWER, _LOG = "job.pickle", "answer.json", "log.txt"

_server: dict[str, str] | None = None
"""Environment variables of the server; None until this process has started its server."""


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
        _set_environment(self._environment)
        super().run()


class ServerContext(ForkServerContext):
    """Context of multiprocessing for processes that must not be forks of this process, for example because it has
    opened an object storage. They have torch imported, and do not run the script of this process again."""

    Process = ServerProcess


def start_server(modules: tuple[str, ...] = FOR_WORKERS) -> None:
    """Start the server, if this process has none; it imports the modules meanwhile."""
    global _server
    if _server is not None:
        return
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
    resource_tracker.ensure_running()  # unblocks signals
    _server = _DEFAULTS | dict(os.environ)
    with blocked(*_OF_THE_GROUP), _environment(_server), _no_main_module():
        forkserver.ensure_running()


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


class CallFailed(Exception):
    """The process of a call ended without an answer; the text is the last error that it printed, or how it ended."""


class CallHung(CallFailed):
    """The call did not end within its time limit."""


def call(
    function: str,
    job: Any,
    *,
    limit_seconds: float,
    environment: Mapping[str, str] | None = None,
    passed_on: tuple[type[Exception], ...] = (),
) -> Any:
    """Call `function` ("package.module.name") with `job` in a new process, and return its result as JSON values.

    environment: the variables of the process; default: of this process. Processes that `function` starts with the
    process's command line, as Lightning does for DDP, call `function` too (LOCAL_RANK distinguishes them). The call
    returns the result of the first process, or raises the first error of any process. All processes are ended before
    the return, and if this process ends.

    Raises ImagenetOptErrors and errors of the types `passed_on` of the function, else CallHung and CallFailed.
    """
    env = dict(os.environ if environment is None else environment)
    with tempfile.TemporaryDirectory(prefix="imagenet_opt_apart_") as scratch:
        folder = Path(scratch)
        (folder / _JOB).write_bytes(pickle.dumps((job, passed_on)))
        process = _start(env, scratch, function)
        try:
            process.join(limit_seconds)
            if process.exitcode is None:
                raise CallHung(f"not finished after {limit_seconds:g} s")
            return _answer(process.exitcode, folder)
        finally:
            _end(process)


def _start(env: dict[str, str], folder: str, function: str) -> Any:
    """A started process of the server; a new interpreter, if the environment differs in what libraries read once."""
    start_server(FOR_CALLS)
    fork = _at_import(env) == _at_import(_server or {})
    context: Any = multiprocessing.get_context("forkserver" if fork else "spawn")
    process = context.Process(target=_called, args=(env, folder, function))
    with nullcontext() if fork else _environment(env), _no_main_module():
        process.start()
    return process


def _answer(code: int, folder: Path) -> Any:
    if not (folder / _ANSWER).exists():
        log = folder / _LOG
        raise CallFailed(_why(code, log.read_text(errors="replace") if log.exists() else ""))
    result = json.loads((folder / _ANSWER).read_text())
    if "error" in result:
        raise resolve_name(result["error"])(result["message"])
    return result["answer"]


def _end(process: Any) -> None:
    """End a process and all processes that it started, with a moment to clean up."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.join(_CLEAN_UP_SECONDS)
    if process.is_alive():
        process.kill()  # it has not yet a group of its own


def _why(code: int, output: str) -> str:
    """The last error that the process printed; without an error, how the process ended."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    end = f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
    return last_error_line(output) or ": ".join([end, *lines[-1:]])


def _called(env: dict[str, str], folder: str, function: str) -> None:
    """In the new process: become as `python -m imagenet_opt.processes FOLDER FUNCTION` would be."""
    os.setsid()
    multiprocessing.set_start_method(None, force=True)  # multiprocessing passes on the caller's method
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    gc.freeze()
    _set_environment(env)
    with open(os.devnull, "rb") as null, (Path(folder) / _LOG).open("wb") as log:
        for number, file in enumerate((null, log, log)):
            os.dup2(file.fileno(), number)
    sys.argv = [__file__, folder, function]
    sys.modules["__main__"] = sys.modules[__name__]
    main()


def main() -> None:
    """Read the file _JOB in the folder argv[1], call the function argv[2], and write the file _ANSWER."""
    folder, function = Path(sys.argv[1]), sys.argv[2]
    end_with_parent(whole_group=True)
    job, passed_on = pickle.loads((folder / _JOB).read_bytes())
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that clean-up runs
    threading.excepthook = _end_with  # a process that has lost a thread may wait for it for ever
    result: dict[str, Any]
    try:
        result = {"answer": resolve_name(function)(job)}
    except (ImagenetOptError, *passed_on) as error:
        result = {"error": f"{type(error).__module__}:{type(error).__qualname__}", "message": str(error)}
    if os.environ.get("LOCAL_RANK", "0") == "0" or "error" in result:
        _write(result, folder)
    sys.stdout.flush()
    # The queues of workers that were not forked from this process have semaphores with names
    util._run_finalizers(0)  # type: ignore[attr-defined]
    # Lightning ends the other processes when one fails. Shutting loaders down may hang and is not measured, so skip it
    os._exit("error" in result)


def _write(result: dict[str, Any], folder: Path) -> None:
    """Write the answer atomically, unless another process of this call has written its answer."""
    written = folder / f"{_ANSWER}.{os.getpid()}"
    written.write_text(json.dumps(result))
    if not (folder / _ANSWER).exists():
        written.rename(folder / _ANSWER)


def _end_with(died: threading.ExceptHookArgs) -> None:
    sys.excepthook(died.exc_type, died.exc_value or died.exc_type(), died.exc_traceback)
    os._exit(1)


def _at_import(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in (_DEFAULTS | dict(env)).items() if name.startswith(READ_AT_IMPORT)}


def _set_environment(env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)


@contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    _set_environment(env)
    try:
        yield
    finally:
        _set_environment(before)


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide the caller's script from multiprocessing, which would run the script again in the new process."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


if __name__ == "__main__":
    main()
