"""Writes checkpoints in a thread; a file is complete whenever it exists, even if the process or the disk fails."""

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imagenet_opt.atomic_file import NEW, replacing, sync_to_disk
from imagenet_opt.errors import CheckpointError, first_line
from imagenet_opt.measure.storage.page_cache import drop_pages
from imagenet_opt.run.checkpoint import files, names

log = logging.getLogger(__name__)

_THREAD = "checkpoint writer"
_MARGIN_BYTES = 16 * 2**20
"""Space beyond the tensors: their names, the archive's index, and the files that loggers write meanwhile."""


class HostCopy:
    """A copy of `state` in host memory, of dicts, lists, tuples, numbers, strings, None, and tensors on the CPU.

    Tensors that share memory in `state` share memory in the copy. GPU tensors are copied asynchronously in the current
    stream, so before the next step changes them; `wait` waits for these copies.
    num_bytes: total size of the tensors. foreign: paths of objects of other types, which are deep-copied; a file with
    such objects cannot be opened with `weights_only`.
    """

    def __init__(self, state: Mapping[Any, Any]) -> None:
        self.num_bytes = 0
        self.foreign: list[str] = []
        self._copies: dict[Any, Tensor] = {}
        self._copied: torch.cuda.Event | None = None
        self.state: dict[Any, Any] = self._plain(state, "")
        self._copies.clear()
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> None:
        """Wait until the copies are complete."""
        if self._copied is not None:
            self._copied.synchronize()

    def _plain(self, value: Any, place: str) -> Any:
        if isinstance(value, Tensor):
            return self._copy(value)
        if isinstance(value, Mapping):
            return {key: self._plain(part, f"{place}/{key}") for key, part in value.items()}
        if isinstance(value, list | tuple):
            parts = [self._plain(part, f"{place}/{i}") for i, part in enumerate(value)]
            return parts if isinstance(value, list) else tuple(parts)
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool):
            return value
        for kind in (int, float, str):
            if isinstance(value, kind):
                return kind(value)
        self.foreign.append(f"{place} ({type(value).__name__})")
        return deepcopy(value)

    def _copy(self, tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.device
        key = (*place, tensor.shape, tensor.stride(), tensor.dtype)
        if key not in self._copies:
            self.num_bytes += tensor.numel() * tensor.element_size()
            if pinned := tensor.device.type == "cuda":
                self._copied = self._copied or torch.cuda.Event()
            copy = torch.empty_like(tensor, device="cpu", pin_memory=pinned, requires_grad=False)
            self._copies[key] = copy.copy_(tensor.detach(), non_blocking=pinned)
        return self._copies[key]


class CheckpointWriter:
    """Writes one checkpoint at a time into `run_folder`, and keeps the newest `keep` of them.

    A file is written under a temporary name, synced to the disk, read back and compared with its checksums, then
    renamed. After that `best.ckpt` and `last.ckpt` are linked to the new file, and older checkpoints are removed.
    A failure (a full disk, a quota, lost storage) logs one warning and keeps the last good file.
    written_step: of the newest complete checkpoint; -1 before the first. lost_best: a save of the best weights has
    failed; the owner resets it. then: called in the thread with the step of each complete checkpoint.
    """

    def __init__(self, run_folder: Path, *, keep: int, then: Callable[[int], None] = lambda step: None) -> None:
        self.run_folder = run_folder
        self.keep, self.then = keep, then
        self._thread: threading.Thread | None = None
        self.written_step, self.lost_best = -1, False
        with contextlib.suppress(OSError):  # left by a killed run; the first save reports a broken folder
            for leftover in (*run_folder.glob(f"{names.FOLDER}/.*{NEW}"), *run_folder.glob(f".*.ckpt.*{NEW}")):
                leftover.unlink()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def write(self, step: int, snapshot: HostCopy, *, is_best: bool) -> None:
        """Start a save, after the previous save has ended. Raises CheckpointError if the file would not open safely."""
        if snapshot.foreign:
            raise CheckpointError(
                f"no checkpoint with {', '.join(snapshot.foreign)} would open safely; "
                "a callback's state_dict may hold numbers, strings, tensors, lists and dicts"
            )
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(step, snapshot, is_best), daemon=True, name=_THREAD)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the save in progress ends, at most `seconds`."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self, step: int, snapshot: HostCopy, is_best: bool) -> None:
        began = time.perf_counter()
        try:
            snapshot.wait()
            size = self._write(step, snapshot, is_best)
            self.written_step = step
            log.info(f"checkpoint of step {step}: {size / 1e6:.0f} MB written in {time.perf_counter() - began:.1f} s")
            self.then(step)
        except Exception as problem:  # no failed save may end the training
            self.lost_best = is_best
            log.warning(
                f"the checkpoint of step {step} could not be written to {self.run_folder / names.FOLDER}: "
                f"{_reason(problem)}; the checkpoint needs {(snapshot.num_bytes + _MARGIN_BYTES) / 1e6:.0f} MB. "
                "The next save, if one is due, tries again"
            )

    def _write(self, step: int, snapshot: HostCopy, is_best: bool) -> int:
        path = names.step_file(self.run_folder, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(path.parent).free < snapshot.num_bytes + _MARGIN_BYTES:
            raise OSError("the disk is full")
        with replacing(path, sync=True) as fresh:
            _save(snapshot, fresh)
            files.verify(fresh)
            size = fresh.stat().st_size
            if is_best:  # before last.ckpt, whose state already names this step as the best
                files.link(fresh, self.run_folder / names.BEST)
        try:
            steps = names.step_files(self.run_folder)
            place = steps.index(path) + 1
            # Later steps are there if the run resumed from an earlier checkpoint.
            for old in (*steps[place:], *steps[: max(0, place - self.keep)]):
                old.unlink()
            files.link(path, self.run_folder / names.LAST)
            sync_to_disk(self.run_folder)
        except OSError as error:  # the checkpoint itself is safe on the disk
            log.warning(
                f"{path} is written, but {names.LAST} could not be updated or older checkpoints not removed: {error}"
            )
        return size


def wait_for_writers(seconds: float) -> None:
    """Wait for each checkpoint writer of this process, at most `seconds` each; call before removing a run folder."""
    for thread in threading.enumerate():
        if thread.name == _THREAD:
            thread.join(seconds)


def _save(snapshot: HostCopy, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(snapshot.state, file)
        file.flush()
        os.fsync(file.fileno())
        drop_pages(file.fileno())  # so that verification reads from the disk


def _reason(problem: BaseException) -> str:
    """The operating system's error message, which torch hides behind its own error."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, OSError):
            return cause.strerror or str(cause)
        cause = cause.__context__
    return first_line(problem)
