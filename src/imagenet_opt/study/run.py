"""Runs one study, from the request to its tables and files."""

import sys
from dataclasses import asdict
from pkgutil import resolve_name
from typing import Any

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.config.compose import composed
from imagenet_opt.display.page import page_of_tables
from imagenet_opt.display.table import Table, how_to_decide
from imagenet_opt.display.terminal_table import about_texts, strict_json
from imagenet_opt.errors import ConfigError
from imagenet_opt.study.request import KINDS, Request
from imagenet_opt.training.folder_lock import lock_folder
from imagenet_opt.training.quiet import quiet


def prepare(request: Request) -> None:
    """Check the configuration and lock the study's folder against other processes. Raises ImagenetOptError."""
    quiet()
    composed(request.overrides)
    lock_folder(request.folder, wait_seconds=0, remedy="--folder FOLDER")


def study(request: Request) -> list[Table]:
    """Run the study and return its tables. Raises ImagenetOptError."""
    module = "steps" if request.kind == "steps" else f"kinds.{request.kind}"
    found: list[Table] = resolve_name(f"imagenet_opt.study.{module}.run")(request)
    return found if request.kind == "steps" else list(map(how_to_decide, found))


def write_outputs(tables: list[Table], request: Request, facts: dict[str, Any]) -> None:
    """Write study.md, study.html and study.json into the study's folder. Raises ConfigError."""
    host, command = facts["machine"], facts["command"]
    line = f"{facts['date']}, {host['gpu'] or host['cpu']}, {host['usable_cpus']} CPUs, "
    line += ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    text = f"## {request.title}\n\n{line}\n\n    {command}\n\n" + "\n".join(table.markdown() for table in tables)
    lengths: dict[str, Any] = {
        name: getattr(request, name) for name in ("repeats", "seconds") if name in KINDS[request.kind]
    }
    lengths |= {"budget_seconds": request.budget_seconds} if request.repeats is None else {}
    numbers = strict_json({"study": request.name} | lengths | facts | {"tables": [asdict(table) for table in tables]})
    page = page_of_tables(request.title, request.title, tables, about=about_texts(facts), command=command)
    try:
        for name, content in {"study.md": text, "study.json": numbers, "study.html": page}.items():
            write_atomically(request.folder / name, content)
    except OSError as error:
        reason = f"the tables above could not be written to {request.folder}: {error.strerror}"
        raise ConfigError(f"{reason}; free space or choose another --folder") from error
    print(f"{request.folder}/study.html has the plots, study.md and study.json the numbers", file=sys.stderr)
