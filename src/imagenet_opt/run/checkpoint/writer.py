"""Writes checkpoints in a thread, so that a reader finds whole ones only, whenever the process or its disk fails."""

import contextlib
import logging
import os
import shutil
import threading
import time
from pathlib import Path
from typing import NamedTuple

import torch

from imagenet_opt.atomic_file import NEW, replacing, sync_to_disk
from imagenet_opt.run.checkpoint import files as files
from imagenet_opt.run.checkpoint.host_copy import Snapshot

log = logging.getLogger(__name__)

_THREAD = "checkpoint writer"
_MARGIN_BYTES = 16 * 2**20
"""Room beyond the tensors: their names, the archive's index, and what loggers write meanwhile."""


class Written(NamedTuple):
    """How the save of `step` ended: seconds that it took, MB in the file; `error` says why there is none."""

    step: int
    is_best: bool
    seconds: float
    megabytes: float
    error: str | None


class CheckpointWriter:
    """Writes one checkpoint at a time into `run_folder`, and keeps the newest `keep` of them.

    A file gets its name once it is complete: written beside, synced to the disk, read back and compared with its
    checksums. Only then `best.ckpt` and `last.ckpt` move on to it, and only then older ones are removed.
    Whatever fails (a full disk, a quota, storage that is gone) is one warning and leaves the last good file alone.
    """

    def __init__(self, run_folder: Path, *, keep: int) -> None:
        self.run_folder = run_folder
        self.keep = keep
        self._thread: threading.Thread | None = None
        self._written: list[Written] = []
        with contextlib.suppress(OSError):  # of a run that was killed while it wrote; trouble shows at the first save
            for leftover in (*run_folder.glob(f"{files.FOLDER}/.*{NEW}"), *run_folder.glob(f".*.ckpt.*{NEW}")):
                leftover.unlink()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def write(self, step: int, snapshot: Snapshot, *, is_best: bool) -> None:
        """Begin to write; waits for the save before."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(step, snapshot, is_best), daemon=True, name=_THREAD)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Until nothing is being written, or so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def finished(self) -> list[Written]:
        """Saves that have ended since the last call."""
        written, self._written = self._written, []
        return written

    def _run(self, step: int, snapshot: Snapshot, is_best: bool) -> None:
        began, error, size = time.perf_counter(), None, snapshot.num_bytes
        try:
            snapshot.wait()
            size = self._write(step, snapshot, is_best)
        except Exception as problem:  # whatever it is, training is worth more than this file
            error = f"{_reason(problem)}; {self._room(snapshot)}"
            log.warning(
                f"the checkpoint of step {step} could not be written to {self.run_folder / files.FOLDER}: {error}. "
                "Training continues and tries again at the next save"
            )
        self._written.append(Written(step, is_best, time.perf_counter() - began, size / 1e6, error))

    def _write(self, step: int, snapshot: Snapshot, is_best: bool) -> int:
        path = files.step_file(self.run_folder, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(path.parent).free < snapshot.num_bytes + _MARGIN_BYTES:
            raise OSError("the disk is full")
        with replacing(path, sync=True) as fresh:
            _save(snapshot, fresh)
            files.verify(fresh)
            size = fresh.stat().st_size
            if is_best:  # first: best.ckpt must not lag behind what a checkpoint says of it
                files.link(fresh, self.run_folder / files.BEST)
        try:
            steps = files.step_files(self.run_folder)
            place = steps.index(path) + 1
            for old in (*steps[place:], *steps[: max(0, place - self.keep)]):  # a run that went back leaves later ones
                old.unlink()
            files.link(path, self.run_folder / files.LAST)
            sync_to_disk(self.run_folder)
        except OSError as error:  # it is durable, whatever becomes of its second name and of the others
            log.warning(f"{path} is written, but {files.LAST} or older checkpoints are as they were: {error}")
        return size

    def _room(self, snapshot: Snapshot) -> str:
        try:
            free = f"{shutil.disk_usage(self.run_folder / files.FOLDER).free / 1e6:.0f} MB"
        except OSError as error:
            free = f"unknown ({error.strerror})"
        return f"it needs {(snapshot.num_bytes + _MARGIN_BYTES) / 1e6:.0f} MB, free: {free}"


def wait_for_writers(seconds: float) -> None:
    """Until no writer of this process writes, or so long for each: before a run folder is removed."""
    for thread in threading.enumerate():
        if thread.name == _THREAD:
            thread.join(seconds)


def _save(snapshot: Snapshot, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(snapshot.state, file)
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):  # so that what is read back comes from the disk, and not from memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _reason(problem: BaseException) -> str:
    """The operating system's word, which torch hides behind its own error."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, OSError):
            return cause.strerror or str(cause)
        cause = cause.__context__
    return str(problem).splitlines()[0] if str(problem) else type(problem).__name__
