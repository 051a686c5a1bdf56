"""How a loader's workers end: which signals they obey, and what it means when one is killed."""

import errno
import os
import resource
import shutil
import signal
import threading
from multiprocessing import current_process

from imagenet_opt import machine
from imagenet_opt.errors import WorkerDied
from imagenet_opt.machine import GIB

_LOST = (ConnectionError, EOFError)
"""When the memory of a batch is fetched from a worker that has gone meanwhile."""


def ignore_group_signals(worker_id: int) -> None:
    """Called in a worker as it begins: it ignores Ctrl-C and SIGUSR1, and obeys a SIGTERM of its parent alone.

    SLURM and process groups send to all; a worker that died would be an error, while the parent still needs it
    to stop in order.
    """
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey, args=(os.getppid(), _temp_dir()), daemon=True, name="signals").start()


def _obey(parent: int, inherited: str | None) -> None:
    """Skips the normal clean-up: the main thread may be blocked on storage for ever.

    inherited: the parent's temporary folder, which other processes use.
    """
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    own = _temp_dir()  # through which tensors' memory is handed over
    if own is not None and own != inherited:
        shutil.rmtree(own, ignore_errors=True)
    os._exit(0)


def _temp_dir() -> str | None:
    """multiprocessing's temporary folder of this process; None while there is none. A fork inherits its parent's."""
    folder: str | None = current_process()._config.get("tempdir")  # type: ignore[attr-defined]
    return folder


def _too_many_files() -> WorkerDied:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = max(4 * limit, 2**16)
    return WorkerDied(
        f"too many open files: each process of this run may open {limit}, and each waiting batch takes two; lower "
        f"data.num_workers or data.prefetch_factor, or raise the limit first: ulimit -n {enough} "
        f"(docker run --ulimit nofile={enough})"
    )


def explain_worker_death(error: Exception) -> WorkerDied | None:
    """Meaning of the DataLoader's error if a worker was killed, or if shared memory or file descriptors ran out; else
    None.

    The error is raised where the batch is requested, or by a signal handler wherever the process is at that moment.
    """
    text = str(error)
    if "Too many open files" in text or "received 0 items of ancdata" in text:
        return _too_many_files()
    no_space = isinstance(error, OSError) and error.errno == errno.ENOSPC  # for a lock or a queue
    full = no_space or "shared memory(shm)" in text or "Bus error" in text
    lost = isinstance(error, _LOST) and "in DataLoader worker process" not in text
    if not full and not lost and "DataLoader worker (pid" not in text:
        return None
    memory, shared = machine.available_memory() / GIB, machine.free_shared_memory() / GIB
    room = f"free now: {memory:.1f} GiB of memory, {shared:.1f} GiB of /dev/shm"
    remedy = "lower data.num_workers, data.prefetch_factor or data.batch_size"
    if full:
        return WorkerDied(f"a loader process found /dev/shm full; {remedy}, or enlarge /dev/shm; {room}")
    reason = (text or type(error).__name__).splitlines()[0].strip()
    return WorkerDied(f"a loader process was killed, usually because memory ran out; {remedy}; {room} ({reason})")
