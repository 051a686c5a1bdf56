"""Locks a run folder, so that one run at a time works in it."""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from imagenet_opt.errors import ImagenetOptError, RunFolderError
from imagenet_opt.file_lock import lock_file

log = logging.getLogger(__name__)

FILE = ".claim"
_MADE_BY_HYDRA = {".hydra", FILE}
_MADE_BY_A_START = _MADE_BY_HYDRA | {"train.log"}
_held: dict[Path, FileLock] = {}
"""The locks of this process, by folder."""


def lock_folder(folder: Path, *, wait_seconds: float = 60, remedy: str = "hydra.run.dir=FOLDER") -> None:
    """Lock `folder` until this process ends in any way; only rank 0 of a run takes the lock.

    wait_seconds: time for another process to end, since a requeued job may start before its predecessor has ended.
    remedy: the option that sets the folder. Raises RunFolderError if another process keeps the lock for wait_seconds,
    or if the folder cannot be written.
    """
    from lightning.fabric.utilities.rank_zero import rank_zero_only  # the import takes seconds

    if rank_zero_only.rank != 0 or os.environ.get("NODE_RANK", "0") != "0":  # type: ignore[attr-defined]
        return
    try:
        _held[folder] = _claim(folder, wait_seconds)
    except Timeout as error:
        raise RunFolderError(
            f"another process works in {folder}; wait for it, or choose another folder with {remedy}"
        ) from error
    except OSError as error:
        raise RunFolderError(
            f"cannot write {folder} ({error.strerror}); choose another folder with {remedy}"
        ) from error


@contextmanager
def removed_if_refused(folder: Path) -> Iterator[None]:
    """Remove `folder` after an ImagenetOptError, if `folder` is new and contains only the files of a start."""
    folder = folder.resolve()
    is_new = _names(folder) <= _MADE_BY_HYDRA
    try:
        yield
    except ImagenetOptError:
        if is_new and _names(folder) <= _MADE_BY_A_START and _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()} if folder.is_dir() else set()


def _is_ours(folder: Path) -> bool:
    """Whether no other process holds the lock."""
    try:
        if folder not in _held:
            lock_file(folder / FILE).release()
    except OSError:
        return False
    return True


def _claim(folder: Path, wait_seconds: float) -> FileLock:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return lock_file(folder / FILE)
    except Timeout:
        if wait_seconds <= 0:
            raise
    log.info(f"another process works in {folder}: waiting up to {wait_seconds:g} s for its end")
    return lock_file(folder / FILE, wait_seconds=wait_seconds)
