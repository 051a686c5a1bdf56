"""Writes the files of a study: study.md, study.html and study.json."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.display.page import page_of_tables
from imagenet_opt.display.table import Table
from imagenet_opt.display.terminal_table import about_texts, strict_json
from imagenet_opt.errors import ConfigError
from imagenet_opt.study.request import KINDS, Request


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
