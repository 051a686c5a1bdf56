"""Prints tables on the terminal and as JSON, with the machine and versions of a measurement."""

import datetime
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from imagenet_opt import errors, machine
from imagenet_opt.display.printable import printable, styles
from imagenet_opt.display.table import Table

_LONG = 16
"""Words in cells that are longer than this, such as paths, may be broken."""
_PROSE = 24
"""Characters: a column with a longer cell holds sentences and is aligned left."""


class Unpadded(Console):
    """A console that prints no spaces at the end of a line into a file or a pipe."""

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            return super().print(*objects, **options)
        with self.capture() as lines:
            super().print(*objects, **options)
        self.file.write(re.sub(r" +$", "", lines.get(), flags=re.MULTILINE))
        self.file.flush()


def terminal(width: int = 110) -> Console:
    """A console that prints texts unchanged to stdout. width: characters where stdout is no terminal and COLUMNS is
    not set."""
    options = {"markup": False, "highlight": False, **styles(sys.stdout)}
    has_width = Console(**options).is_terminal or "COLUMNS" in os.environ
    return Unpadded(width=None if has_width else width, **options)


def print_sentence(sentence: str) -> None:
    """Print a sentence to stdout: on a terminal wrapped between words, elsewhere as one line."""
    console = terminal()
    console.print(printable(sentence), soft_wrap=not console.is_terminal)


def facts_table(facts: Iterable[tuple[str, str | Text]], *, style: str, **layout: Any) -> RichTable:
    """A table of names and texts without a heading. style: of the names. layout: arguments of `rich.table.Table`."""
    table = RichTable(**{"box": None, "show_header": False, "pad_edge": False, "padding": (0, 2, 0, 0)} | layout)
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(name, printable(text) if isinstance(text, str) else text)
    return table


def verdict_panel(sentence: str, facts: Iterable[tuple[str, str | Text]], *, title: str, healthy: bool) -> Panel:
    """A verdict in one sentence, with the facts behind it, in a frame that is green or red."""
    parts = Group(Text(printable(sentence), style="bold"), Text(), facts_table(facts, style="dim"))
    return Panel(parts, title=Text(title), title_align="left", border_style="green" if healthy else "red")


def print_tables(tables: Sequence[Table]) -> Console:
    """Print tables with their notes, and return the console for further output."""
    console = terminal(140)
    for table in tables:
        console.print("", terminal_table(table, console.width), "", sep="\n")
        for note in table.sentences:
            console.print(Padding(Text(printable(note)), (0, 0, 0, 2), expand=False))
    return console


def terminal_table(table: Table, width: int) -> RichTable:
    """A table of at most `width` columns, wrapped between words."""
    texts = [table.headings, *table.texts()]
    columns = [[errors.printable(text) for text in column] for column in zip(*texts, strict=True)]
    drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    drawn.title, drawn.title_justify = errors.printable(table.title), "left"
    for place, most in enumerate(_widths(columns, width - 2 * (len(columns) - 1))):
        is_text = place == 0 or max(map(len, columns[place][1:]), default=0) > _PROSE
        drawn.add_column(columns[place][0], justify="left" if is_text else "right", overflow="fold", width=most)
    for row in list(zip(*columns, strict=True))[1:]:
        drawn.add_row(*row)
    return drawn


def _widths(columns: list[list[str]], room: int) -> list[int]:
    """Widths of the columns: as wide as the texts if there is room; else the widest columns are narrowed first, down to
    their longest word, and further only if that is not enough."""
    spans = [(_longest_word(texts), max(map(cell_len, texts))) for texts in columns]
    widths = _fitted(spans, room)
    return widths if sum(widths) <= room else _fitted([(1, least) for least, _ in spans], room)


def _fitted(spans: list[tuple[int, int]], room: int) -> list[int]:
    """Widths that fit into `room`. spans: minimum and maximum width of each column."""
    limit = max(most for _, most in spans)
    while limit and sum(max(least, min(most, limit)) for least, most in spans) > room:
        limit -= 1
    return [max(least, min(most, limit)) for least, most in spans]


def _longest_word(texts: list[str]) -> int:
    heading, *cells = texts
    words = [min(cell_len(word), _LONG) for cell in cells for word in cell.split()]
    return max([*words, *map(cell_len, heading.split())], default=0)


def strict_json(content: Any) -> str:
    """JSON text with null for nan and infinities, which JSON does not have."""
    plain = json.loads(json.dumps(content), parse_constant=lambda name: None)
    return json.dumps(plain, indent=2) + "\n"


def about(command: str) -> dict[str, Any]:
    """Command, date, machine and versions. Call this before measuring, since it records the load of the machine."""
    return {"command": command, "date": now(), "machine": machine.facts(), "versions": machine.versions()}


def about_texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """The facts of `about` as texts for a page."""
    host, versions = facts["machine"], facts["versions"]
    return {
        "date": facts["date"],
        "machine": f"{host['gpu'] or host['cpu']}, {host['usable_cpus']} CPUs",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def now() -> str:
    """The local time with its offset from UTC."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
