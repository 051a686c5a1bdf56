"""The rows that Weights & Biases gets: whole, in the order of steps, each once over any number of restarts."""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import WandbLogger

from imagenet_opt.run.loggers.metrics_csv import FILE, read_rows
from imagenet_opt.run.loggers.wandb_run import STEP

log = logging.getLogger(__name__)

_READ_SECONDS = 120


class WandbRows(WandbLogger):
    """Lightning's W&B logger, whose rows are numbered by the training step, which W&B's own step is too.

    logged_until: the last step that W&B has already; rows up to it are left out. None when that is not known.
    A row is handed over when the next one begins, since validation adds to the row of its step; a run that fails keeps
    its last row back, and a resumed one completes it from metrics.csv in `folder` or logs it again.
    When W&B fails, that is said once, and training goes on without it.
    """

    def __init__(self, *, folder: str, logged_until: int | None, experiment: Any, **options: Any) -> None:
        super().__init__(save_dir=folder, experiment=experiment, **options)
        self._folder = Path(folder)
        self.logged_until = logged_until
        self._step, self._row = -1, dict[str, float]()
        self._works = True

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        step = self._step if step is None else step
        if self.logged_until is not None and step <= self.logged_until:
            return
        if step != self._step:
            self._hand_over()
        self._step = step
        self._row |= metrics

    @rank_zero_only
    def truncate_after(self, step: int) -> None:
        """The run goes on after `step`: rows up to it that W&B lost in a crash are filled in from metrics.csv."""
        if self.logged_until is None:
            self.logged_until = step
        for row_step, row in read_rows(self._folder / FILE):
            if row_step <= step:
                self.log_metrics(row, row_step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if status == "success":
            self._hand_over()
        super().finalize(status)

    def _hand_over(self) -> None:
        row, self._row = self._row, {}
        if not row or not self._works:
            return
        try:
            self.experiment.log(row | {STEP: self._step}, step=self._step, commit=True)
        except Exception as error:  # whatever it is, it is not worth a training run
            self._works = False
            log.warning(
                f"W&B failed at step {self._step} ({type(error).__name__}: {error}); training goes on without it, "
                f"metrics.csv has every row, and the next start of the run sends what is missing"
            )


def logged_until(folder: Path, run_id: str) -> int | None:
    """The last step in the files that earlier starts of the run left in `folder`; -1 for none, None when unreadable.

    W&B writes them every 15 seconds, so that a killed run's last rows are not there.
    """
    files = (folder / "wandb").glob(f"*run-*-{run_id}/run-{run_id}.wandb")
    for file in sorted(files, key=lambda file: file.parent.name.removeprefix("offline-"), reverse=True):
        try:
            if steps := _steps(file):
                return max(steps)
        except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            log.warning(f"W&B's file {file} cannot be read ({type(error).__name__}); rows that it lacks stay missing")
            return None
    return -1


def _steps(file: Path) -> list[int]:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_READ_SECONDS, check=True)
    records = (json.loads(line) for line in done.stdout.splitlines() if '"type":"history"' in line)
    return [int(record["history"]["item"]["_step"]) for record in records]
