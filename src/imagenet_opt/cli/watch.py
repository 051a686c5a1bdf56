"""`imagenet-opt watch`: shows a run while it trains, as a page or on the terminal."""

import argparse
import os
from pathlib import Path

from imagenet_opt.cli.arguments import Parser
from imagenet_opt.errors import ConfigError

HELP = """Show a run while it trains: as a page for a browser, or on the terminal. No account is needed.

imagenet-opt watch                       the newest run below runs/
imagenet-opt watch runs/mine             serves its report, which reloads itself; prints the address
imagenet-opt watch runs/mine --terminal  numbers and small charts on the terminal, also over ssh

  RUN         run folder (default: the newest run, or job of a sweep, below runs/)
  --port N    port of the page (default: a free port)
  --terminal  show the run on the terminal, which needs 80 columns, until the run ends or you press q
              (where stdout is no terminal: print the numbers once)

The page is served on 127.0.0.1 only, and only to who has the address: it ends in a random token. Ctrl-C ends the
watcher, not the run. For a run on another machine: ssh -L 8000:127.0.0.1:8000 MACHINE, and there
imagenet-opt watch RUN --port 8000. The watcher changes no file and leaves nearly all CPU time to other
processes."""

RUNS = Path("runs")
_MOST_PORT = 65535


def main(argv: list[str]) -> None:
    options = parse(argv)
    from imagenet_opt.watch.run_folder import newest_run, require_run

    folder = require_run(options.run) if options.run else newest_run(RUNS)
    give_way()
    if options.terminal:
        from imagenet_opt.display.terminal_table import terminal
        from imagenet_opt.watch.terminal import LEAST_WIDTH, watch_terminal

        watch_terminal(folder, terminal(LEAST_WIDTH))
    else:
        from imagenet_opt.watch.server import serve

        serve(folder, options.port)


def give_way() -> None:
    """Leave the CPUs to the run: by SCHED_IDLE, or by nice 19 where that is refused, as in some containers."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.nice(19)


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("watch")
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?")
    parser.add_argument("--port", type=int)
    parser.add_argument("--terminal", action="store_true")
    options = parser.parse_args(argv)
    if options.port is not None and not 0 < options.port <= _MOST_PORT:
        raise ConfigError(f"--port {options.port} is no port; expected 1 to {_MOST_PORT}, such as 8000")
    if options.port is not None and options.terminal:
        raise ConfigError("--port is for the page; leave it out, or leave out --terminal")
    return options
