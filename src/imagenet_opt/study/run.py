"""Runs one study, from the request to its tables and files."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.config.compose import composed
from imagenet_opt.display.page import page_of_tables
from imagenet_opt.display.table import Table, how_to_decide
from imagenet_opt.display.terminal_table import about_texts, strict_json
from imagenet_opt.errors import ConfigError
from imagenet_opt.study.request import KINDS, Request
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


def write_outputs(tables: list[Table], request: Request, facts: dict[str, Any]) -> None:
    """Write study.md, study.html and study.json into the study's folder, and the JSON into `request.json` as well.

    The page shows the plots of each table above the table. Raises ConfigError.
    """
    host, command = facts["machine"], facts["command"]
    line = f"{facts['date']}, {host['gpu'] or host['cpu']}, {host['usable_cpus']} CPUs, "
    line += ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    text = f"## {request.title}\n\n{line}\n\n    {command}\n\n" + "\n".join(table.markdown() for table in tables)
    lengths: dict[str, Any] = {
        name: getattr(request, name) for name in ("repeats", "seconds") if name in KINDS[request.kind]
    }
    lengths |= {"budget_seconds": request.budget_seconds} if request.repeats is None else {}
    numbers = strict_json({"study": request.name} | lengths | facts | {"tables": [asdict(table) for table in tables]})
    page = page_of_tables(
        request.title,
        request.title,
        tables,
        about=about_texts(facts),
        command=command,
    )
    _write(request.folder / "study.md", text, "--folder")
    _write(request.folder / "study.json", numbers, "--folder")
    _write(request.folder / "study.html", page, "--folder")
    if request.json is not None:
        _write(request.json, numbers, "--json")
    print(f"{request.folder}/study.html has the plots, study.md and study.json the numbers", file=sys.stderr)


def _write(file: Path, text: str, flag: str) -> None:
    """Write a file. flag: the option that sets its place, named in the error. Raises ConfigError."""
    try:
        write_atomically(file, text)
    except OSError as error:
        reason = f"the tables above could not be written to {file}: {error.strerror}"
        raise ConfigError(f"{reason}; free space or choose another {flag}") from error
