"""Restores files whose data is in an archive, such as S3 behind FSx for Lustre, with Lustre's own commands.

The data of a "released" file is only in the archive, and a read waits for it. `lfs hsm_restore` requests many files and
returns at once; `lfs hsm_state` shows which files are still released (manual pages lfs-hsm_restore(1),
llapi_hsm_state_get(3)).
"""

import logging
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

from imagenet_opt.data.index.files import SplitFiles
from imagenet_opt.errors import printable
from imagenet_opt.measure.storage.lustre import RELEASED, is_lustre, parse_hsm_states

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 0.5
_PATIENCE = 120.0
"""Seconds without any restored file after which the remaining files are read instead."""


class LfsFailed(Exception):
    """`lfs` failed: no permission, no archive, or an answer in another format."""


def can_restore(folder: Path) -> bool:
    return is_lustre(folder) and shutil.which("lfs") is not None


def restore(
    files: SplitFiles,
    wanted: Iterable[int],
    *,
    in_flight: int,
    on_done: Callable[[int], None],
    wait_seconds: float = _SECONDS_BETWEEN_LOOKS,
    patience: float = _PATIENCE,
) -> None:
    """Restore released files, `in_flight` at a time, and call `on_done` for each file that is available.

    Raises LfsFailed when `lfs` fails or no file is restored for `patience` seconds; the caller then reads the
    remaining files.
    """
    left, waiting = iter(wanted), dict[str, int]()
    last_change = time.monotonic()
    while True:
        fresh = {files.path(i): i for i in islice(left, in_flight - len(waiting))}
        if released := _still_released(fresh, on_done):
            _run("hsm_restore", list(released))
        waiting |= released
        if not waiting and not fresh:
            return
        if not waiting:
            continue
        time.sleep(wait_seconds)
        before = len(waiting)
        waiting = _still_released(waiting, on_done)
        if len(waiting) < before:
            last_change = time.monotonic()
        elif time.monotonic() - last_change > patience:
            raise LfsFailed(
                f"Lustre restored no file for {patience:g} s; the first missing file is {next(iter(waiting))}"
            )


def _still_released(files: dict[str, int], on_done: Callable[[int], None]) -> dict[str, int]:
    if not files:
        return {}
    states = parse_hsm_states(_run("hsm_state", list(files)))
    if absent := files.keys() - states.keys():
        raise LfsFailed(f"lfs hsm_state gives no state of {next(iter(absent))}")
    for path, number in files.items():
        if not states[path] & RELEASED:
            on_done(number)
    return {path: number for path, number in files.items() if states[path] & RELEASED}


def _run(action: str, paths: Sequence[str]) -> str:
    command = ["lfs", action, *paths]
    try:
        done = subprocess.run(command, capture_output=True, errors="surrogateescape", timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LfsFailed(printable(f"lfs {action}: {error}"[:300])) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise LfsFailed(printable(f"lfs {action} ended with status {done.returncode}: {lines[0]}"))
    return done.stdout
