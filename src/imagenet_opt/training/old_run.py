"""Sets the files of an earlier run aside, for a new run in its folder."""

import logging
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

from imagenet_opt.measure.telemetry import timeline
from imagenet_opt.run.checkpoint import files as checkpoints
from imagenet_opt.run.checkpoint import restore
from imagenet_opt.run.loggers import metrics_rows
from imagenet_opt.run.loggers.wandb_logger import ID_FILE, STEP_FILE
from imagenet_opt.training.summary_file import SUMMARY

log = logging.getLogger(__name__)

_OF_A_RUN = (
    *(checkpoints.FOLDER, checkpoints.LAST, checkpoints.BEST, timeline.FOLDER),
    *(metrics_rows.FILE, SUMMARY, ID_FILE, STEP_FILE),
)
"""What a later start of a run reads, and would take for its own."""


def set_old_run_aside(folder: Path, *, is_new: bool) -> Callable[[], None]:
    """For a new run in the folder of another run, move the files of that run to `folder`/replaced_N. The result moves
    them back."""
    names = [name for name in _OF_A_RUN if is_new and restore.is_first() and (folder / name).exists()]
    if not names:
        return lambda: None
    aside = next(path for number in count(1) if not (path := folder / f"replaced_{number}").exists())
    aside.mkdir()
    for name in names:
        (folder / name).rename(aside / name)
    log.info(f"a new run: the files of the run before are now in {aside}")

    def put_back() -> None:
        for name in names:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            (aside / name).replace(folder / name)
        aside.rmdir()

    return put_back
