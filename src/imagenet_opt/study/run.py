"""Runs one study, from the request to its tables."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pkgutil import resolve_name

from imagenet_opt.config.compose import composed
from imagenet_opt.display.table import Table, how_to_decide
from imagenet_opt.study.request import Request
from imagenet_opt.training.folder_lock import FILE, lock_folder
from imagenet_opt.training.quiet import quiet

BUSY_PERCENT = 20
"""Above this percentage of CPU used by other programs, the study prints a warning."""


def prepare(request: Request) -> None:
    """Check the configuration and lock the study's folder against other processes. Raises ImagenetOptError."""
    quiet()
    composed(request.overrides)
    lock_folder(request.folder, wait_seconds=0, remedy="--folder FOLDER")


@contextmanager
def removed_if_empty(folder: Path, is_new: bool) -> Iterator[None]:
    """Remove a new folder again if an error leaves nothing in it. is_new: whether this process created it."""
    try:
        yield
    except BaseException:
        if is_new and [file.name for file in folder.iterdir()] == [FILE]:
            with suppress(OSError):
                (folder / FILE).unlink()
                folder.rmdir()
        raise


def warn_if_busy(percent: float) -> None:
    """Print a warning on stderr if other programs use much of the CPUs."""
    if percent > BUSY_PERCENT:
        print(f"other programs use {percent:.0f} % of the CPUs: intervals will be wide", file=sys.stderr, flush=True)


def study(request: Request) -> list[Table]:
    """Run the study and return its tables. Raises ImagenetOptError."""
    module = "steps" if request.kind == "steps" else f"kinds.{request.kind}"
    found: list[Table] = resolve_name(f"imagenet_opt.study.{module}.run")(request)
    return found if request.kind == "steps" else list(map(how_to_decide, found))
