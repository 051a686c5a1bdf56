"""Progress of a command on stderr."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol

from imagenet_opt.display.printable import is_screen, printable, styles


class Show(Protocol):
    """Show that `done` of `total` units are done. num_bytes: size of the units that are done, for a rate in MB/s."""

    def __call__(self, done: int, total: int, num_bytes: int | None = None) -> None: ...


@cache
def print_once(sentence: str) -> None:
    """Print a sentence to stderr, once per process."""
    print(sentence, file=sys.stderr)


def say(text: str) -> None:
    """Print a line on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, unit: str, *, began: float | None = None) -> Iterator[Show]:
    """A bar on a terminal, else a line at each tenth and after each minute, with the rate and the time left. unit:
    noun, such as files. began: `time.perf_counter` at the start of the work; None: now."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    began, terminal, shown = began or time.perf_counter(), is_screen(sys.stderr), (0, 0)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    bar = Progress(what, *columns, console=Console(stderr=True, **styles(sys.stderr)), disable=not terminal)
    task = bar.add_task("", total=None, rate="")

    def show(done: int, total: int, num_bytes: int | None = None) -> None:
        nonlocal shown
        seconds = time.perf_counter() - began
        rate = f"{done / seconds:.0f} {unit}/s"
        if num_bytes is not None:
            rate += f", {num_bytes / 1e6 / seconds:.1f} MB/s"
        bar.update(task, completed=done, total=total, rate=rate)
        if not terminal and total and done and (now := (10 * done // total, int(seconds / 60))) != shown:
            shown = now
            left = f", {duration(seconds * (total - done) / done)} left" if done < total else ""
            print(f"{what}: {done} of {total} {unit}, {rate}{left}", file=sys.stderr, flush=True)

    with bar:
        yield show


@contextmanager
def announced(total: int | None, *, budget_seconds: float = 0.0) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal, with the elapsed time; elsewhere a line for each measurement. Yields a function to call
    with the description of the next measurement.

    total: number of measurements; None if it is not known. budget_seconds: how long they should take together, which is
    then shown beside the elapsed time; slow storage takes longer.
    """
    from rich import progress as rich
    from rich.console import Console
    from rich.table import Column

    began, terminal, num_begun = time.perf_counter(), is_screen(sys.stderr), 0
    planned = f" of about {budget_seconds:.0f} s" if budget_seconds else ""
    description = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # the other columns are never narrowed
    bar = rich.Progress(
        rich.TextColumn("{task.description}", markup=False, table_column=description),
        rich.BarColumn(bar_width=20),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn(planned),
        console=Console(stderr=True, **styles(sys.stderr)),
        disable=not terminal,
        transient=True,
    )
    task = bar.add_task("", total=total)

    def announce(what: str) -> None:
        nonlocal num_begun
        what, passed = printable(what), time.perf_counter() - began
        if not terminal:
            clock = f" ({passed:.0f} s{planned})" if planned or passed >= 60 else ""
            print(f"measuring: {what}{clock}", file=sys.stderr, flush=True)
        bar.update(task, description=what, completed=num_begun)
        num_begun += 1

    with bar:
        yield announce


def size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.2f} MB"


DAY = 24 * 3600
"""Seconds, also those of the longest --budget."""


def roughly(seconds: float) -> str:
    """An estimated duration, with two digits at most."""
    if seconds >= DAY:
        return "over a day"
    unit, length = ("h", 3600) if seconds >= 3600 else ("min", 60) if seconds >= 60 else ("s", 1)
    return f"about {float(f'{seconds / length:.2g}'):g} {unit}"


def as_budget(seconds: float) -> str:
    """The value of --budget for at least these seconds, a day at most."""
    hours = math.ceil(min(seconds, DAY) / 3600)
    return f"{hours}h" if hours > 2 else f"{max(1, math.ceil(seconds / 60))}m"


def duration(seconds: float) -> str:
    """Format in seconds, minutes or hours, depending on the size; never 0.0 for a short time."""
    if 0 < seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"
