"""One run at a time in a run folder."""

import logging
import os
import time
from pathlib import Path

from filelock import FileLock, Timeout
from lightning.fabric.utilities.rank_zero import rank_zero_only

from imagenet_opt.errors import RunFolderError
from imagenet_opt.file_lock import claim

log = logging.getLogger(__name__)

FILE = ".claim"
_POLL_SECONDS = 0.5
_held: list[FileLock] = []
"""The locks of this process."""


def keep_others_out(folder: Path, *, wait_seconds: float = 60, remedy: str = "hydra.run.dir=FOLDER") -> None:
    """Hold `folder` until this process ends in any way; of a run's processes, the first one does.

    wait_seconds: a job that was queued again may meet the slow end of the one before. remedy: what names another one.
    Raises RunFolderError when another process still works there after that, or the folder cannot be written.
    """
    if rank_zero_only.rank != 0 or os.environ.get("NODE_RANK", "0") != "0":  # type: ignore[attr-defined]
        return
    try:
        _held.append(_claim(folder, wait_seconds))
    except Timeout as error:
        raise RunFolderError(
            f"another process works in {folder}; wait for it, or choose another folder with {remedy}"
        ) from error
    except OSError as error:
        raise RunFolderError(f"cannot write {folder} ({error.strerror}); choose another with {remedy}") from error


def _claim(folder: Path, wait_seconds: float) -> FileLock:
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_seconds
    told = False
    while True:
        try:
            return claim(folder / FILE)
        except Timeout:
            if time.monotonic() >= deadline:
                raise
        if not told:
            log.info(f"another process works in {folder}: waiting up to {wait_seconds:g} s for its end")
            told = True
        time.sleep(_POLL_SECONDS)
