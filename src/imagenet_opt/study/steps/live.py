"""How far a study of steps is: on a terminal a short table so far, elsewhere a line for each turn."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, median

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from imagenet_opt.display.printable import printable
from imagenet_opt.display.progress import duration
from imagenet_opt.study.steps.outcome import Outcome
from imagenet_opt.study.steps.table import MEASURES, gaps, rates, ratios_of

_KEPT_SECONDS = 1.0
"""Starting a turn's process takes longer; what is there sooner was measured before."""


@contextmanager
def live(outcome: Outcome, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """What it yields is told what is measured next. console: None for stderr."""
    console = console or Console(stderr=True, markup=False, highlight=False)
    pace = Pace(outcome)
    if not console.is_terminal:
        yield lambda what: print(f"measuring: {pace.next(what)}", file=sys.stderr, flush=True)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as view:

        def announce(what: str) -> None:
            words = pace.next(what)
            view.update(Group(Spinner("dots", Text(words)), table(outcome)), refresh=True)

        yield announce


class Pace:
    """How long the rest takes. It tells on stderr, once each, what gaps there are to close and which rows failed."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._began = time.perf_counter()
        self._turn_began: float | None = None
        self._taken: list[float] = []
        self._told: set[str] = set()

    def next(self, what: str) -> str:
        """The words for a turn that begins now."""
        now = time.perf_counter()
        if self._turn_began is not None and now - self._turn_began > _KEPT_SECONDS:
            self._taken.append(now - self._turn_began)
        self._turn_began = now
        self._tell("gaps", gaps(self.outcome))
        for name, reason in self.outcome.failures.items():
            self._tell(f"failure of {name}", f"{name} failed: {reason}")
        words = f"{what}, {duration(now - self._began)} so far"
        left = seconds_left(self.outcome, self._taken)
        return printable(words if left is None else f"{words}, the rounds take about {duration(left)} more")

    def _tell(self, what: str, said: str | None) -> None:
        if said and what not in self._told:
            print(printable(said), file=sys.stderr, flush=True)
            self._told.add(what)


def seconds_left(outcome: Outcome, taken: Sequence[float]) -> float | None:
    """Of the rounds, if turns go on as in the last one. None before the first is over, and when all are.

    taken: seconds of the turns so far.
    """
    if outcome.ended:
        return None
    rows = [row.name for row in outcome.plan.rows if row.name not in outcome.failures]
    counts = [len(outcome.speeds.get(name, [])) for name in rows]
    left = sum(outcome.request.repeats - num for num in counts)
    return left * fmean(taken[-len(rows) :]) if taken and left and min(counts) else None


def table(outcome: Outcome) -> Table:
    """A line a row, so that a terminal holds it."""
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    found.add_column("step", no_wrap=True, overflow="ellipsis")
    for name in MEASURES.values():
        for heading in (f"{name}, images/s", "worth"):
            found.add_column(heading, justify="right")
    ratios = [ratios_of(outcome, measure) for measure in MEASURES]
    for row in outcome.plan.rows:
        cells = [printable(row.name)]
        for measure, worth in zip(MEASURES, ratios, strict=True):
            measured, ratio = rates(outcome, row, measure), worth.get(row.name)
            cells.append(f"{median(measured):,.0f}" if measured else "failed" * (row.name in outcome.failures))
            cells.append(f"{ratio.ratio:.2f} x" if ratio else "")
        found.add_row(*cells)
    return found
