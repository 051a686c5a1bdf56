"""Start and end of loader workers: what they take over, the signals that they obey, and the causes of their death."""

import ctypes
import errno
import gc
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any

from imagenet_opt import machine, private_api
from imagenet_opt.errors import ImagenetOptError, WorkerDied
from imagenet_opt.machine import GIB
from imagenet_opt.processes import ServerContext, blocked, end_with_parent

_M_MMAP_THRESHOLD = -3  # of glibc's mallopt
_MAPPED_BYTES = 4 * 2**20
"""Larger allocations of a worker are maps of their own, which the system gets back at once. By default glibc keeps up
to 32 MB for each thread: measured, a worker that read files of 20 MB held 317 MB instead of 137 MB."""
_CLOSE_SECONDS = 1.0
"""Time for workers to end by themselves. Workers that wait for storage are terminated after this time."""
_LOST = (ConnectionError, EOFError)
"""Errors of fetching the memory of a batch from a dead worker."""


class WorkerStart:
    """First call in a worker that a fork server has forked: the worker takes over the log files of the training
    process, obeys the signals of `ignore_group_signals`, and ends with the training process."""

    def __init__(self) -> None:
        root = logging.getLogger()
        self.log_level = root.level
        self.logs = [
            (getattr(each, "baseFilename", None), each.level, each.formatter)
            for each in root.handlers
            if type(each) in (logging.FileHandler, logging.StreamHandler)
        ]

    def __call__(self, worker_id: int) -> None:
        machine.allow_open_files()
        root = logging.getLogger()
        root.setLevel(self.log_level)
        for file, level, formatter in self.logs:
            handler = logging.FileHandler(file, delay=True) if file else logging.StreamHandler(sys.stdout)
            handler.setLevel(level)
            handler.setFormatter(formatter)
            root.addHandler(handler)
        ignore_group_signals(worker_id)
        end_with_parent()  # torch watches the parent of a worker, which is the server here


class ForkedWorker(ForkProcess):
    """A fork of the training process.

    Each thread in it blocks SIGTERM, also threads that libraries start during the fork, as OpenTelemetry does, which
    W&B uses: a thread that does not block it would end the worker. The worker never collects garbage of the training
    process: CUDA does not work in a fork, so freeing something of CUDA there, such as an event, ends the process.
    """

    def start(self) -> None:
        collects = gc.isenabled()
        with blocked(signal.SIGTERM):
            gc.disable()  # in the worker until `run`
            try:
                super().start()
            finally:
                if collects:
                    gc.enable()

    def run(self) -> None:
        gc.freeze()
        gc.enable()
        super().run()


class ForkedWorkers(ForkContext):
    Process = ForkedWorker


def worker_options(*, is_remote: bool) -> dict[str, Any]:
    """Arguments of a DataLoader that start its workers: forks of this process, which inherit index, shared buffers and
    codec; with samples of a URL, forks of a server, since a fork of this process would have a client of objects without
    threads. Python 3.14 does not fork by default."""
    if is_remote:
        return {"multiprocessing_context": ServerContext(), "worker_init_fn": WorkerStart()}
    return {"multiprocessing_context": ForkedWorkers(), "worker_init_fn": ignore_group_signals}


def ignore_group_signals(worker_id: int) -> None:
    """Make a new worker ignore Ctrl-C and SIGUSR1, and obey only a SIGTERM of its parent; and return freed memory.

    SLURM and terminals send signals to the whole process group. The death of a worker would be an error, while the
    parent still needs the worker to stop in order.
    """
    with suppress(AttributeError):  # glibc alone has this function
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        parent = parent_process()
        assert parent is not None
        threading.Thread(target=_obey, args=(parent.pid,), daemon=True, name="signals").start()


def _obey(parent: int | None) -> None:
    """End at a SIGTERM of the parent, without clean-up, because storage may block the main thread forever."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


def end_workers(iterator: Any, end_thread: Callable[[], None] | None) -> None:
    """End the workers of a DataLoader's iterator, even if they wait for storage. end_thread: ends the thread that may
    wait for their next batch."""
    private_api.expect_end_of_workers(iterator)
    if end_thread is not None:
        queue = private_api.queue_of_batches(iterator)
        queue.cancel_join_thread()  # the end of this process must not wait for the next item
        queue.put((None, None))  # a thread that waits for a batch fails on this number, which torch does not know
        end_thread()
    late = threading.Timer(_CLOSE_SECONDS, private_api.terminate_workers, [iterator])
    late.start()
    try:
        private_api.shut_workers_down(iterator)
    finally:
        late.cancel()
        late.join()


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise the errors of a DataLoader's workers without their traceback, and WorkerDied for a killed worker."""
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        if (death := explain_worker_death(error)) is None:
            raise
        raise death from error
    except ImagenetOptError as error:
        kind = type(error)  # in a worker, the DataLoader puts a traceback and this name before the message
        _, name, message = str(error).rpartition(f"{kind.__module__}.{kind.__qualname__}: ")
        if not name:
            raise
        raise kind(message.removesuffix(r"\n")) from error  # of torch's text


def explain_worker_death(error: Exception) -> WorkerDied | None:
    """The error for users if the DataLoader's error means that a worker was killed, or that shared memory or file
    descriptors ran out; else None.

    torch raises the error where the batch is requested, or in a signal handler, at any place in the program.
    """
    text = str(error)
    if "Too many open files" in text or "received 0 items of ancdata" in text:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        enough = max(4 * limit, 2**16)
        return WorkerDied(
            f"too many open files: each process of this run may open {limit}, and each waiting batch takes two; lower "
            f"data.num_workers or data.prefetch_factor, or raise the limit first: ulimit -n {enough} "
            f"(docker run --ulimit nofile={enough})"
        )
    no_space = isinstance(error, OSError) and error.errno == errno.ENOSPC  # for a lock or a queue
    full = no_space or "shared memory(shm)" in text or "Bus error" in text
    lost = isinstance(error, _LOST) and "in DataLoader worker process" not in text
    if not full and not lost and "DataLoader worker (pid" not in text:
        return None
    memory, shared = machine.available_memory() / GIB, machine.free_shared_memory() / GIB
    room = f"free now: {memory:.1f} GiB of memory, {shared:.1f} GiB of /dev/shm"
    remedy = "lower data.num_workers, data.prefetch_factor or data.batch_size"
    if full:
        return WorkerDied(
            f"a loader process found /dev/shm full; {remedy}, or enlarge /dev/shm (docker run --shm-size=8g); {room}"
        )
    reason = (text or type(error).__name__).splitlines()[0].strip()
    return WorkerDied(f"a loader process was killed, usually because memory ran out; {remedy}; {room} ({reason})")
