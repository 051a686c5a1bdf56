"""The table of a study while it is measured, on a terminal; a line for each turn elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner

from imagenet_opt.cli.progress import duration
from imagenet_opt.cli.study_output import terminal_table
from imagenet_opt.measure.sheet import Sheet


@contextmanager
def live(sheets: Callable[[], list[Sheet]]) -> Iterator[Callable[[str], None]]:
    """What it yields is told what is measured next, and shows the sheets so far."""
    if not sys.stderr.isatty():
        yield lambda what: print(f"measuring: {what}", file=sys.stderr, flush=True)
        return
    began = time.perf_counter()
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as view:

        def announce(what: str) -> None:
            words = f"{what}, {duration(time.perf_counter() - began)} so far"
            view.update(Group(*map(terminal_table, sheets()), Spinner("dots", words)))

        yield announce
