"""Signals in a loader's worker: a stop that reaches the whole process group is not for it."""

import os
import shutil
import signal
import threading
from multiprocessing import current_process


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
