"""Progress of a command on stderr."""

import datetime
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from imagenet_opt.display.printable import printable
from imagenet_opt.display.screen import is_screen, styles

if TYPE_CHECKING:
    from rich.progress import Progress


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
def progress(what: str, unit: str) -> Iterator[Show]:
    """A bar on a terminal, else a line at each tenth and after each minute, with the rate and the time left. unit:
    noun, such as files."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    began, terminal, shown = time.perf_counter(), is_screen(sys.stderr), (0, 0)
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


_PACE = 4.0
"""The time left is at most this many times the planned time, so that one long stall does not multiply it."""


class _Expected(NamedTuple):
    """When all measurements will have ended, in seconds since the start.

    seconds: if the rest keeps the present pace. later_seconds: planned for the measurements after the present one.
    """

    seconds: float
    later_seconds: float

    def at(self, passed: float) -> float:
        """The expectation after `passed` seconds, of which the present measurement may have taken more than planned."""
        return max(self.seconds, passed + self.later_seconds)


def _expected(planned: Sequence[float], num_ended: int, passed: float) -> _Expected:
    """planned: seconds of each measurement. num_ended: measurements that took `passed` seconds together."""
    ended, left = sum(planned[:num_ended]), sum(planned[num_ended:])
    pace = min(_PACE, max(1.0, passed / ended)) if ended else 1.0
    return _Expected(passed + pace * left, sum(planned[num_ended + 1 :]))


@contextmanager
def announced(
    total: int | None, *, budget_seconds: float | None = None, planned: Sequence[float] = ()
) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal, with the elapsed time and the time left; elsewhere a line for each measurement, with
    the time left if this is over a minute. Yields a function to call with the description of the next measurement.

    total: number of measurements; None if it is not known. budget_seconds: of measurements without a known number;
    it, or what is left of it, is shown beside the elapsed time, and the bar shows how much of it is used. planned:
    seconds that each measurement should take; the expected time of all is then shown beside the elapsed time.
    """
    began, terminal = time.perf_counter(), is_screen(sys.stderr)
    with _bar_of_measurements(budget_seconds, planned, disable=not terminal) as bar:
        task = bar.add_task("", total=sum(planned) or budget_seconds or total, expected=_expected(planned, 0, 0.0))
        num_begun = 0

        def announce(what: str) -> None:
            nonlocal num_begun
            what, passed = printable(what), time.perf_counter() - began
            expected = _expected(planned, num_begun, passed)
            if not terminal:
                left = passed * (total - num_begun) / num_begun if total and num_begun else 0.0
                clock = f" ({duration(left)} left)" if left > 60 else ""
                if planned:
                    clock = f" ({passed:.0f} s of about {expected.seconds:.0f} s)"
                elif budget_seconds:
                    over = _over(passed, budget_seconds)
                    clock = f" ({passed:.0f} s{over or f' of {budget_seconds:.0f} s'})"
                print(f"measuring: {what}{clock}", file=sys.stderr, flush=True)
            done = sum(planned[:num_begun]) if planned else passed if budget_seconds else num_begun
            bar.update(task, description=what, completed=done, expected=expected)
            num_begun += 1

        yield announce


def _over(passed: float, budget_seconds: float) -> str:
    """What follows an elapsed time that slow storage has extended beyond the budget; empty for another."""
    return f", over the budget of {budget_seconds:.0f} s" if passed > budget_seconds else ""


def _bar_of_measurements(budget_seconds: float | None, planned: Sequence[float], *, disable: bool) -> "Progress":
    """The bar of `announced`. With a budget or planned times, these stand beside the elapsed time, instead of the
    number of measurements and the time left. The field "expected" of its task is an _Expected."""
    from rich import progress as rich
    from rich.console import Console
    from rich.table import Column
    from rich.text import Text

    class Clock(rich.ProgressColumn):
        def render(self, task: rich.Task) -> Text:
            passed = task.elapsed or 0.0
            if planned:
                after = f" of about {_clock(task.fields['expected'].at(passed))}"
            else:
                budget = budget_seconds or 0.0
                after = _over(passed, budget) or f", {_clock(budget - passed)} left"
            return Text(_clock(passed) + after, "progress.elapsed")

    of_time = bool(planned or budget_seconds)
    description = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # the other columns are never narrowed
    return rich.Progress(
        rich.TextColumn("{task.description}", markup=False, table_column=description),
        rich.BarColumn(bar_width=20),
        *((Clock(),) if of_time else (rich.MofNCompleteColumn(), rich.TimeElapsedColumn(), rich.TimeRemainingColumn())),
        console=Console(stderr=True, **styles(sys.stderr)),
        disable=disable,
        transient=True,
        expand=True,
        speed_estimate_period=math.inf,  # one measurement may take minutes
    )


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=int(seconds)))


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
