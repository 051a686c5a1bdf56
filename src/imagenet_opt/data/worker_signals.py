"""Signals in a loader's worker: a stop that reaches the whole process group is not for it."""

import os
import shutil
import signal
import threading
from multiprocessing.util import get_temp_dir


def shield(worker_id: int) -> None:
    """Called in a worker as it begins: it ignores Ctrl-C and SIGUSR1, and obeys a SIGTERM of its parent alone.

    SLURM and process groups send to all; a worker that died would be an error, while the parent still needs it
    to stop in order.
    """
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey, args=(os.getppid(),), daemon=True, name="signals").start()


def _obey(parent: int) -> None:
    """Nothing else is put in order: the thread that works may be waiting for storage, for however long."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    shutil.rmtree(get_temp_dir(), ignore_errors=True)  # through which its batches' memory was handed over
    os._exit(0)
