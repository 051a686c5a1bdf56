"""Fits the text of a help to a narrow terminal."""

import re
import shutil
import sys
from textwrap import fill

_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
"""Between an option or a command line and its meaning."""
_ROOM = 30
"""Characters: a meaning that has less beside its option stands below the option."""


def print_help(text: str) -> None:
    """Print `text`; on a terminal, lines that are too long are wrapped between words."""
    print(fitted(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text)


def fitted(text: str, width: int) -> str:
    """`text` in lines of at most `width` characters, except for words that are longer."""
    return "\n".join(_wrapped(line, width) for line in _joined(text.splitlines(), width))


def _joined(lines: list[str], width: int) -> list[str]:
    """Lines of which those that are too long are joined with the lines that continue them."""
    found: list[str] = []
    is_long = False
    for line in lines:
        stripped = line.lstrip()
        continues = is_long and stripped and not _GAP.search(line) and not stripped.startswith("imagenet-opt ")
        if continues and len(line) - len(stripped) == _column(found[-1]):
            found[-1] += f" {stripped}"
        else:
            found.append(line)
            is_long = len(line) > width
    return found


def _column(line: str) -> int:
    """Where the text of a line begins: after the option, if there is one."""
    gap = _GAP.search(line)
    return gap.end() if gap else len(line) - len(line.lstrip())


def _wrapped(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    begin, column = line[: _column(line)], " " * _column(line)
    if width - len(begin) < _ROOM:
        column = " " * (len(line) - len(line.lstrip()) + 6)
        begin = f"{begin.rstrip()}\n{column}" if begin.strip() else column
    first = column if "\n" in begin else begin
    text = fill(
        line[_column(line) :], width, initial_indent=first, subsequent_indent=column,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return begin.removesuffix(column) + text if "\n" in begin else text
