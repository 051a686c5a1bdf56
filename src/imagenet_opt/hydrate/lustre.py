"""What Lustre itself says and does about files whose data is in an archive, such as S3 behind FSx for Lustre.

Only the archive's copy is left of a "released" file; to read it is to wait for it. `lfs hsm_restore` asks for many at
once and returns; `lfs hsm_state` says what is still released (manual pages lfs-hsm_restore(1), llapi_hsm_state_get(3)).
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
"""Seconds in which no file comes back at all, after which they are read instead."""


class LfsFailed(Exception):
    """`lfs` cannot do it: not allowed, no archive, or an answer of another form."""


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
    """Have the files that are released brought back, `in_flight` at a time; `on_done` for each that is there.

    Raises LfsFailed where that goes no further; the rest is to be read.
    """
    left, waiting = iter(wanted), dict[str, int]()
    last_change = time.monotonic()
    while True:
        fresh = {files.path(i): i for i in islice(left, in_flight - len(waiting))}
        if asked := _still_released(fresh, on_done):
            _run("hsm_restore", list(asked))
        waiting |= asked
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
                f"no file came back for {patience:g} s; the first that is waited for: {next(iter(waiting))}"
            )


def _still_released(files: dict[str, int], on_done: Callable[[int], None]) -> dict[str, int]:
    if not files:
        return {}
    states = parse_hsm_states(_run("hsm_state", list(files)))
    if absent := files.keys() - states.keys():
        raise LfsFailed(f"lfs hsm_state says nothing of {next(iter(absent))}")
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
        said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        raise LfsFailed(printable(f"lfs {action} ended with status {done.returncode}: {said[0]}"))
    return done.stdout
