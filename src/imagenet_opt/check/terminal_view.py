"""Prints the results of `imagenet-opt check`."""

from rich import box
from rich.table import Table
from rich.text import Text

from imagenet_opt.check.result import CheckResult
from imagenet_opt.display.terminal_table import terminal
from imagenet_opt.errors import printable

_SHOWN = 5
"""Most details of a warning or an error that are printed; a JSON file has all."""
_COLOURS = {"ok": "green", "info": "cyan", "warning": "yellow", "error": "bold red"}


def show_worst(classes: dict[str, dict[str, float | None]]) -> None:
    """Print the classes with the lowest accuracy on val. classes: accuracy on train and val by class name; None for a
    split without images of the class."""
    known = [(shares["val"], shares["train"], name) for name, shares in classes.items() if shares["val"] is not None]
    print("classes with the lowest accuracy on val:")
    for val, train, name in sorted(known, key=lambda row: (row[0], -(row[1] or 0.0)))[:_SHOWN]:
        of_train = "no image" if train is None else f"{100 * train:.0f} %"
        print(f"  {printable(name)}: right on {100 * val:.0f} % of val, {of_train} of train")


def show(verdicts: list[CheckResult]) -> None:
    """Print the verdicts as a table, and below it the files and classes that they name."""
    console = terminal(120)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("check", "", "found"):
        table.add_column(name, overflow="fold", no_wrap=name == "")
    for verdict in verdicts:
        level = Text(verdict.level, style=_COLOURS[verdict.level])
        table.add_row(printable(verdict.check), level, printable(verdict.text))
    console.print(table)
    for verdict in verdicts:
        if verdict.details and verdict.level != "info":
            console.print(f"{verdict.check}:")
            for line in verdict.details[:_SHOWN]:
                console.print(f"  {printable(line)}", soft_wrap=True)
            if more := verdict.details[_SHOWN:]:
                console.print(f"  and {len(more)} more (--json FILE has all)")
    worst = {level: sum(verdict.level == level for verdict in verdicts) for level in ("error", "warning")}
    console.print(", ".join(f"{num} {level}{'s' * (num != 1)}" for level, num in worst.items()))
