"""Sheets on the terminal and as JSON, and what every measurement says of where it comes from."""

import datetime
import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from imagenet_opt import machine
from imagenet_opt.cli.terminal import printable
from imagenet_opt.measure.sheet import Sheet


def print_sheets(sheets: Sequence[Sheet]) -> Console:
    """On the terminal, with their notes; with what else may be said there."""
    console = Console(markup=False, highlight=False, width=None if Console().is_terminal else 140)
    for sheet in sheets:
        console.print(terminal_table(sheet))
        for note in sheet.notes:
            console.print(f"  {printable(note)}")
    return console


def terminal_table(sheet: Sheet) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=printable(sheet.title), title_justify="left")
    for place, column in enumerate(sheet.columns):
        table.add_column(column.heading, justify="left" if place == 0 else "right", overflow="fold")
    for row in sheet.texts():
        table.add_row(*map(printable, row))
    return table


def strict_json(found: Any) -> str:
    """With null for what is no finite number, for which JSON has no word."""
    plain = json.loads(json.dumps(found), parse_constant=lambda name: None)
    return json.dumps(plain, indent=2) + "\n"


def about(command: str) -> dict[str, Any]:
    """By what, when and where it is measured, and how busy others keep the machine: call it before measuring."""
    return {"command": command, "date": now(), "machine": machine.facts(), "versions": machine.versions()}


def now() -> str:
    """With the offset from UTC."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
