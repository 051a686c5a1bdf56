"""The results of `imagenet-opt check`, and how they are printed."""

from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text

from imagenet_opt.display.terminal_table import terminal
from imagenet_opt.errors import printable

Level = Literal["ok", "info", "warning", "error"]
_SHOWN = 5
"""Most details of a warning or an error that are printed; a JSON file has all."""
_COLOURS = {"ok": "green", "info": "cyan", "warning": "yellow", "error": "bold red"}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. text: the finding, and the remedy unless the level is ok.

    details: one file or class each; names may contain terminal control characters.
    """

    check: str
    level: Level
    text: str
    details: tuple[str, ...] = ()


def show(results: list[CheckResult]) -> None:
    """Print the results as a table, and below it the files and classes that they name."""
    console = terminal(120)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("check", "", "found"):
        table.add_column(name, overflow="fold", no_wrap=name == "")
    for result in results:
        level = Text(result.level, style=_COLOURS[result.level])
        table.add_row(printable(result.check), level, printable(result.text))
    console.print(table)
    for result in results:
        for number, line in enumerate(result.details[:_SHOWN]):
            if number == 0:
                console.print(f"{result.check}:")
            console.print(f"  {printable(line)}", soft_wrap=True)
        if more := result.details[_SHOWN:]:
            console.print(f"  and {len(more)} more (--json FILE has all)")
    worst = {level: sum(result.level == level for result in results) for level in ("error", "warning")}
    console.print(", ".join(f"{num} {level}{'' if num == 1 else 's'}" for level, num in worst.items()))
