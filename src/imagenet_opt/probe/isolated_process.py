"""The process in which `isolated.call_isolated` calls a function."""

import json
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from multiprocessing import util
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from imagenet_opt.errors import ImagenetOptError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.isolated import ANSWER, JOB, end_like_an_error


def main() -> None:
    """Read the file JOB in the folder argv[1], call the function argv[2] ("package.module.name"), and write the file
    ANSWER."""
    folder, function = Path(sys.argv[1]), sys.argv[2]
    job = pickle.loads((folder / JOB).read_bytes())
    end_like_an_error()
    threading.excepthook = _end_with  # a process that has lost a thread may wait for it for ever
    threading.Thread(target=_end_with_caller, args=(os.getppid(),), daemon=True).start()
    result: dict[str, Any]
    try:
        result = {"answer": resolve_name(function)(job)}
    except (ImagenetOptError, TurnFailed) as error:
        result = {"error": type(error).__name__, "message": str(error)}
    if os.environ.get("LOCAL_RANK", "0") == "0" or "error" in result:
        _write(result, folder)
    sys.stdout.flush()
    # The queues of workers that were not forked from this process have semaphores with names
    util._run_finalizers(0)  # type: ignore[attr-defined]
    # Lightning ends the other processes when one fails. Shutting loaders down may hang and is not measured, so skip it
    os._exit("error" in result)


def _write(result: dict[str, Any], folder: Path) -> None:
    """Write the answer atomically, unless another process of this call has written its answer."""
    written = folder / f"{ANSWER}.{os.getpid()}"
    written.write_text(json.dumps(result))
    if not (folder / ANSWER).exists():
        written.rename(folder / ANSWER)


def _end_with(died: threading.ExceptHookArgs) -> None:
    sys.excepthook(died.exc_type, died.exc_value or died.exc_type(), died.exc_traceback)
    os._exit(1)


def _end_with_caller(parent: int) -> None:
    """End this process and its group when the caller dies, since nothing else would end a hung process.

    parent: process id of the parent, for a process that was not forked for the caller.
    """
    if caller := multiprocessing.parent_process():
        caller.join()
    while not caller and os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
