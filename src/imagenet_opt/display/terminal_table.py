"""Tables on the terminal and as JSON, and what every measurement says of where it comes from."""

import datetime
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from imagenet_opt import machine
from imagenet_opt.display.printable import printable
from imagenet_opt.display.table import Sheet

_LONG = 16
"""Words of cells that are longer, as paths are, may be broken."""
_PROSE = 24
"""Characters: a column with a longer cell holds sentences and begins at the left."""
_ENDS = re.compile(r"(?<=[\d%])-(?=\d)")
"""Between the two numbers of an interval."""


def terminal(width: int = 110) -> Console:
    """stdout, which shows texts as they are. width: characters where stdout is no terminal."""
    return Console(markup=False, highlight=False, width=None if Console().is_terminal else width)


def facts_table(facts: Iterable[tuple[str, str | Text]], *, style: str, **layout: Any) -> Table:
    """A name and a text a row, without a heading. style: of the names. layout: of `rich.table.Table`."""
    table = Table(**{"box": None, "show_header": False, "pad_edge": False, "padding": (0, 2, 0, 0)} | layout)
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(name, printable(text) if isinstance(text, str) else text)
    return table


def print_sheets(sheets: Sequence[Sheet]) -> Console:
    """On the terminal, with their notes; with what else may be said there."""
    console = terminal(140)
    for sheet in sheets:
        console.print("", terminal_table(sheet, console.width), "", sep="\n")
        for note in sheet.notes:
            console.print(f"  {printable(note)}")
    return console


def terminal_table(sheet: Sheet, width: int) -> Table:
    """No wider than that: wrapped at words, and at the ends of intervals where even the words have no room."""
    texts = [[column.heading for column in sheet.columns], *sheet.texts()]
    columns = [[printable(text) for text in own] for own in zip(*texts, strict=True)]
    gaps = len(columns) - 1
    if _least_width(columns) + gaps > width:
        columns = [[heading, *(_ENDS.sub("- ", cell) for cell in cells)] for heading, *cells in columns]
    wide = _least_width(columns) + 2 * gaps <= width
    table = Table(box=box.SIMPLE_HEAD, padding=(0, int(wide), 0, 0), pad_edge=False, show_edge=False)
    table.title, table.title_justify = printable(sheet.title), "left"
    for place, most in enumerate(_widths(columns, width - (1 + wide) * gaps)):
        is_text = place == 0 or max(map(len, columns[place][1:]), default=0) > _PROSE
        table.add_column(columns[place][0], justify="left" if is_text else "right", overflow="fold", width=most)
    for row in list(zip(*columns, strict=True))[1:]:
        table.add_row(*row)
    return table


def _widths(columns: list[list[str]], room: int) -> list[int]:
    """As wide as the texts where there is room; else the widest give way first: as far as their words allow, and where
    that is not enough, without regard to them."""
    spans = [(_longest_word(texts), max(map(cell_len, texts))) for texts in columns]
    widths = _fitted(spans, room)
    return widths if sum(widths) <= room else _fitted([(1, least) for least, _ in spans], room)


def _fitted(spans: list[tuple[int, int]], room: int) -> list[int]:
    """spans: the least and the most that each would have."""
    limit = max(most for _, most in spans)
    while limit and sum(max(least, min(most, limit)) for least, most in spans) > room:
        limit -= 1
    return [max(least, min(most, limit)) for least, most in spans]


def _least_width(columns: list[list[str]]) -> int:
    return sum(map(_longest_word, columns))


def _longest_word(texts: list[str]) -> int:
    heading, *cells = texts
    words = [min(cell_len(word), _LONG) for cell in cells for word in cell.split()]
    return max([*words, *map(cell_len, heading.split())], default=0)


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
