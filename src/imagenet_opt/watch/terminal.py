"""Follows a run on a terminal."""

import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from imagenet_opt.watch.run_folder import read_snapshot
from imagenet_opt.watch.terminal_view import view

LEAST_WIDTH = 80
EVERY_SECONDS = 2.0


def watch_terminal(folder: Path, console: Console) -> None:
    """Show the view until the run ends, or until q or Ctrl-C. The last view stays on the terminal.

    Where stdout is no terminal, the view is printed once.
    """
    if console.is_terminal:
        with (
            suppress(KeyboardInterrupt),
            _single_keys(),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while read_snapshot(folder).ending is None:
                live.update(_view(folder, console), refresh=True)
                if _key(EVERY_SECONDS) == "q":
                    break
    console.print(_view(folder, console))


def _view(folder: Path, console: Console) -> Group:
    return view(read_snapshot(folder), width=max(console.width, LEAST_WIDTH), height=console.height)


@contextmanager
def _single_keys() -> Iterator[None]:
    """Make the terminal deliver each key at once and unseen."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    """A key pressed within some seconds, else an empty text."""
    keyboard = [sys.stdin] if sys.stdin.isatty() else []
    return sys.stdin.read(1) if select.select(keyboard, [], [], seconds)[0] else ""
