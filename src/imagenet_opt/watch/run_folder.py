"""The folder of a run, read while the run trains. Nothing here writes."""

import fcntl
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imagenet_opt.errors import ConfigError
from imagenet_opt.run.loggers.metrics_rows import FILE, read_rows
from imagenet_opt.training import preempted
from imagenet_opt.training.folder_lock import FILE as LOCK
from imagenet_opt.training.summary_file import SUMMARY

CONFIG = ".hydra/config.yaml"
_LOG_TAIL_BYTES = 8192
_PROGRESS = re.compile(r"epoch (?P<epoch>\S+)  step (?P<step>\S+)  .*?(?P<left>\S+) left$", re.MULTILINE)
"""A line of callbacks/progress_bar.py in train.log."""


@dataclass(frozen=True)
class Snapshot:
    """What the files of a run say now.

    rows: (step, metrics) of each row of metrics.csv; a resumed run continues the rows of its start.
    progress: "epoch" and "step" within the epoch, such as 3/8, and "left", such as 1:20; empty without train.log.
    ending: sentence that says how the run ended; None while it trains.
    """

    name: str
    rows: Sequence[tuple[int, Mapping[str, float]]]
    progress: Mapping[str, str]
    ending: str | None


def newest_run(parent: Path) -> Path:
    """The run below `parent`, or the job of a sweep there, that wrote last. Raises ConfigError if there is none."""
    files = [file for level in ("*", "*/*") for name in (FILE, CONFIG) for file in parent.glob(f"{level}/{name}")]
    if not files:
        raise ConfigError(f"there is no run below {parent}/; start one (python train.py), or name its folder")
    newest = max(files, key=_modified)
    return newest.parent if newest.name == FILE else newest.parents[1]


def require_run(folder: Path) -> Path:
    """`folder`. Raises ConfigError if it is not the folder of a run."""
    if not any((folder / name).is_file() for name in (FILE, CONFIG)):
        raise ConfigError(f"{folder} is no run: it has neither {FILE} nor {CONFIG}; name a folder that train.py wrote")
    return folder


def version(folder: Path) -> str:
    """A text that changes when metrics.csv changes and when the run ends or resumes."""
    return f"{_modified(folder / FILE)}-{'ended' if ending(folder) else 'trains'}"


def read_snapshot(folder: Path) -> Snapshot:
    """Raises RunFolderError when metrics.csv cannot be read."""
    return Snapshot(folder.absolute().name, read_rows(folder / FILE), _progress(folder / "train.log"), ending(folder))


def ending(folder: Path) -> str | None:
    """A sentence that says how the run ended; None while it starts or trains, or where locks do not work."""
    if _is_locked(folder / LOCK):
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        stop = json.loads((folder / preempted.FILE).read_text())
        return f"The run stopped at step {stop['step']} ({stop['reason']}). The same command resumes it."
    if not (folder / LOCK).exists() and not (folder / FILE).exists():
        return None
    if 0 < _modified(folder / FILE) <= _modified(folder / SUMMARY):
        return "The run has ended."
    return f"The run ended early; {folder / 'train.log'} may say why. The same command resumes it."


def _is_locked(file: Path) -> bool:
    """Whether another process holds the lock. The test takes a shared lock for an instant."""
    try:
        with file.open() as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # another process has it, or the file system has no locks
        return True
    return False


def _modified(file: Path) -> int:
    """Nanoseconds; 0 for a missing file."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _progress(log: Path) -> dict[str, str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LOG_TAIL_BYTES))
            tail = file.read().decode(errors="replace")
    except OSError:
        return {}
    found = list(_PROGRESS.finditer(tail))
    return found[-1].groupdict() if found else {}
