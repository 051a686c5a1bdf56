"""Tables are read on terminals of any width."""

from io import StringIO

import pytest
from rich.console import Console

from imagenet_opt.display.table import Column, Table
from imagenet_opt.display.terminal_table import terminal_table

WIDE = Table(
    "Steps",
    (Column("step"), *(Column(f"images/s of column {number}", "{:,.0f}") for number in range(5)), Column("verdict")),
    tuple((f"compile, mode number-{row}", *[1234.5 * row] * 5, "1.10 x (0.97 to 3.36) undecided") for row in range(4)),
    ("A note that is longer than the terminal is wide, so that the note goes on in a second line of the terminal.",),
)


def printed(table: Table, width: int) -> list[str]:
    screen = StringIO()
    Console(file=screen, width=width, color_system=None).print(terminal_table(table, width))
    return screen.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 140])
def test_tables_break_at_words(width: int) -> None:
    lines = printed(WIDE, width)
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    shown = [column.heading for column in WIDE.columns] + [text for row in WIDE.texts() for text in row]
    assert {word for text in shown for word in text.split()} <= words
