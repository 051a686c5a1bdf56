"""Uploads checkpoints to a mirror while training continues."""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from imagenet_opt.atomic_file import NEW
from imagenet_opt.errors import ImagenetOptError, first_line
from imagenet_opt.object_storage import FoundObject
from imagenet_opt.run.checkpoint import files, mirror, names
from imagenet_opt.run.checkpoint.mirror import call
from imagenet_opt.run.loggers.run_logger import ID_FILES
from imagenet_opt.run.numbers import METRICS

log = logging.getLogger(__name__)

OTHERS = (METRICS, *ID_FILES, names.COMPILED_CODE)
"""Files of the run folder that the mirror holds beside the checkpoints: the rows of the run, its ids in services
such as W&B, and compiled code."""


class CheckpointUploads:
    """Uploads one checkpoint of `run_folder` at a time to the mirror at `url`, in a thread; nothing if it is None.

    A checkpoint that is added during an upload waits; a newer checkpoint replaces the waiting one. keep: number of
    checkpoints to keep in the mirror; best.ckpt and OTHERS are uploaded too. replaced: later checkpoints of the mirror
    that the first upload removes; all other later checkpoints are of another run, and nothing is uploaded.
    A failure logs one warning, and the next checkpoint is uploaded as usual.
    """

    def __init__(self, url: str | None, run_folder: Path, *, keep: int, replaced: Sequence[FoundObject] = ()) -> None:
        self.url = (url or "").rstrip("/")
        self.run_folder, self.keep = run_folder, keep
        self.replaced = list(replaced)
        self._num_held = 0
        self._lock: AbstractContextManager[Any] = threading.Lock() if url else nullcontext()  # a lock has no copy
        self._thread: threading.Thread | None = None
        self._waiting: tuple[int, Path] | None = None
        self._newest, self._newest_there = -1, -1
        self._best_there: tuple[int, int] | None = None

    def add(self, step: int) -> None:
        """Upload the checkpoint of `step`, if there is one. The caller may remove or replace the file meanwhile."""
        if not self.url or not names.step_file(self.run_folder, step).exists():
            return
        self._newest = step
        try:
            held = self._hold(names.step_file(self.run_folder, step))
        except OSError as error:
            self._fail(step, error.strerror or str(error))
            return
        with self._lock:
            if self._waiting is not None:
                _release(self._waiting[1])
            self._waiting = step, held
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="checkpoint upload")
                self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all uploads have ended, at most `seconds`. Returns whether they have ended."""
        if (thread := self._thread) is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def finish(self, seconds: float) -> None:
        """Wait until the mirror has the newest checkpoint, at most `seconds`; log an error if the mirror lacks it."""
        if self._thread is not None:
            log.info(f"uploading the checkpoint of step {self._newest} to {self.url}")
        ended = self.wait(seconds)
        if self._newest_there != self._newest:
            waited = "" if ended else f" after {seconds:.0f} s"
            log.error(
                f"{mirror.KEY}={self.url} lacks step {self._newest}{waited}; the run folder has it: "
                f"{names.step_file(self.run_folder, self._newest)}"
            )

    def _run(self) -> None:
        while (job := self._next()) is not None:
            (step, held), began = job, time.perf_counter()
            try:
                self._upload(step, held)
                self._newest_there = step
                log.info(f"checkpoint of step {step}: uploaded in {time.perf_counter() - began:.1f} s")
            except Exception as problem:  # no failed upload may end the training
                self._fail(step, first_line(problem))
            _release(held)

    def _next(self) -> tuple[int, Path] | None:
        with self._lock:
            job, self._waiting = self._waiting, None
            if job is None:
                self._thread = None
            return job

    def _upload(self, step: int, held: Path) -> None:
        best, best_now = None, None
        with suppress(FileNotFoundError):
            status = (self.run_folder / names.BEST).stat()
            best_now = status.st_mtime_ns, status.st_size
            if best_now != self._best_there:
                best = self._hold(self.run_folder / names.BEST)
        try:
            problem = call(
                "upload",
                self.url,
                name=str(names.step_file(Path(), step)),
                checkpoint=str(held),
                best=None if best is None else str(best),
                others=[str(self.run_folder / name) for name in OTHERS if (self.run_folder / name).exists()],
                keep=self.keep,
                replaced=self.replaced,
            )
        finally:
            if best is not None:
                _release(best)
        self._best_there = best_now
        if problem is None:
            self.replaced = []
        else:
            log.warning(f"the mirror has step {step}, but old checkpoints could not be removed there: {problem}")

    def _hold(self, path: Path) -> Path:
        """Another name of a file, which keeps its content; a killed run leaves it, and the next start removes it."""
        self._num_held += 1
        held = path.with_name(f".{path.name}.upload{self._num_held}{NEW}")
        files.link(path, held)
        return held

    def _fail(self, step: int, reason: str) -> None:
        log.warning(
            f"the checkpoint of step {step} is not in {mirror.KEY}={self.url}: {reason}. Training continues, and the "
            "next save is uploaded again"
        )


def check_writable(url: str, trainer: Trainer) -> None:
    """Raise StorageFailed or ConfigError in all processes of a run if its first process cannot write to the mirror."""
    problem = None
    if trainer.is_global_zero:
        try:
            mirror.check_url(url)
            call("probe", url)
        except ImagenetOptError as error:
            problem = error
    if (problem := trainer.strategy.broadcast(problem)) is not None:
        raise problem


def _release(held: Path) -> None:
    with suppress(OSError):
        held.unlink(missing_ok=True)
