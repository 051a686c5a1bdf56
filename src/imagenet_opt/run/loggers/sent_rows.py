"""Rows that are sent to a service, each step once, also over restarts of the run."""

import logging
import os
import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from imagenet_opt.errors import ConfigError, named_first_line
from imagenet_opt.run.checkpoint.names import step_file, step_files
from imagenet_opt.run.loggers.run_logger import SERVICES, RunLogger, is_offline
from imagenet_opt.run.numbers import METRICS, read_rows

log = logging.getLogger(__name__)
_RUN_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


class SentRows(RunLogger, Logger):
    """A logger of the service `name`, to which `_send` sends a row.

    logged_until: the last step that the service already has, None if unknown; rows up to this step are not sent again.
    A row is sent when the next row starts, since validation adds metrics to the row of its step. A failed run does
    not send its last row; the resumed run sends this row from metrics.csv in `folder` or logs it again.
    When the service fails, one warning is logged, and training continues without it. `folder`/KEY_step.txt holds the
    last step that was sent.
    """

    service: str
    key: str

    def __init_subclass__(cls) -> None:
        if cls.key not in SERVICES:
            raise TypeError(f"{cls.key} is missing in SERVICES of run/loggers/run_logger.py")

    def __init__(self, *, folder: str, logged_until: int | None, **options: Any) -> None:
        super().__init__(**options)
        self._folder = Path(folder)
        self.logged_until = logged_until
        self._step, self._row = -1, dict[str, float]()
        self._works = True

    def _start(self, connect: Callable[[], None]) -> None:
        """Connect to the service, in the first process. Raises ConfigError if its package is not installed."""
        if find_spec(self.key) is None:
            raise ConfigError(f'logger={self.key} needs the package {self.key}; pip install "imagenet-opt[{self.key}]"')
        self._connect(connect)

    @rank_zero_only
    def _connect(self, connect: Callable[[], None]) -> None:
        self._works = not is_offline()  # a run that is only measured sends nothing
        try:
            if self._works:
                connect()
        except Exception as error:  # no failure of a service may end the training
            self._give_up("cannot be reached", error)

    @abstractmethod
    def _send(self, row: dict[str, float], step: int) -> None:
        """Send the row of a step, in the first process."""

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the run folder contains the configuration."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        step = self._step if step is None else step
        if self.logged_until is None or step > self.logged_until:
            if step != self._step:
                self._send_row()
            self._step = step
            self._row |= metrics

    @rank_zero_only
    def truncate_after(self, step: int) -> None:
        """Before a run resumes after `step`, send the rows up to `step` from metrics.csv that were lost in a crash.

        A warning says what the service keeps if the run goes back behind a later checkpoint, as with resume_from=FILE.
        """
        if self.logged_until is None:
            self.logged_until = step
        files = step_files(self._folder)
        if files and files[-1] > step_file(self._folder, step + 1) and self.logged_until > step:
            log.warning(
                f"{self.service} takes no step twice: it keeps the old curve up to step {self.logged_until}, and the "
                "new one up to there is in metrics.csv alone; for a curve of its own, add hydra.run.dir=NEW_FOLDER to "
                "resume_from"
            )
        for row_step, row in read_rows(self._folder / METRICS):
            if row_step <= step:
                self.log_metrics(row, row_step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if status == "success":
            self._send_row()
        super().finalize(status)

    def _send_row(self) -> None:
        row, self._row = self._row, {}
        if not row or not self._works:
            return
        try:
            self._send(row, self._step)
        except Exception as error:  # no failure of a service may end the training
            self._give_up(f"failed at step {self._step}", error)
            return
        with suppress(OSError):  # a full disk is not a failure of the service
            _write_step(self._folder / f"{self.key}_step.txt", self._step)

    def _give_up(self, what: str, error: Exception) -> None:
        self._works = False
        log.warning(
            f"{self.service} {what} ({named_first_line(error)}); training continues without {self.service}, "
            "metrics.csv has every row, and the next start sends the missing rows"
        )

    def _at_end(self, call: Callable[[], Any], what: str, remedy: Callable[[], str] = lambda: "") -> None:
        """Call the service after the training, which does not fail because of it. what: it could not do."""
        try:
            call()
        except Exception as error:
            log.warning(f"{self.service} {what} ({named_first_line(error)}){remedy()}")


def _write_step(file: Path, step: int) -> None:
    """Replace the number in `file`. All numbers are equally long: to empty a file first can take 1 ms."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, f"{step:<19}\n".encode())
    finally:
        os.close(descriptor)


def last_sent_step(folder: Path, key: str) -> int | None:
    """The last step that earlier starts of the run sent; None if unknown."""
    try:
        return int((folder / f"{key}_step.txt").read_text())
    except (OSError, ValueError):
        return None


def run_id(folder: Path, key: str) -> str:
    """The id in `folder`/KEY_id.txt, which the first start of a run writes."""
    file = folder / f"{key}_id.txt"
    if file.exists():
        found = file.read_text(errors="replace").strip()
        if _RUN_ID.fullmatch(found):
            return found
        log.warning(f"{file} holds no valid id of a run; starting a new run there")
    found = uuid.uuid4().hex[:8]
    with suppress(OSError):  # a full disk must not end the training; the next start is then another run there
        file.write_text(f"{found}\n")
    return found
