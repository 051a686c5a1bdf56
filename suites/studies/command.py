"""What the studies share: their command line, and the rounds of their settings."""

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping
from typing import TypeVar

from imagenet_opt.compare.rounds import Rounds, in_rounds
from imagenet_opt.display.table import Table, how_to_decide
from imagenet_opt.display.terminal_table import print_tables
from imagenet_opt.errors import ImagenetOptError, first_line
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.isolated import begin_measuring
from imagenet_opt.study.comparison import ComparedSetting

T = TypeVar("T")


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def arguments(doc: str | None, argv: list[str] | None = None, **lists: str) -> Namespace:
    """The command line. lists: names of lists of numbers with their defaults, such as "2,4"."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of train.py")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of all rows (5)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each timed stretch (8)")
    for name, default in lists.items():
        parser.add_argument(f"--{name}", type=numbers, default=default, help=f"({default})")
    begin_measuring()
    return parser.parse_intermixed_args(argv)


def measured(settings: Mapping[str, ComparedSetting[T]], repeats: int) -> Rounds[T]:
    """Measure the settings in rounds. A turn with an error of the package or of torch counts as failed."""

    def turn(name: str, number: int) -> T:
        print(f"round {number + 1} of {repeats}: {name}", file=sys.stderr)
        try:
            return settings[name].turn()
        except (ImagenetOptError, RuntimeError) as error:
            raise TurnFailed(first_line(error)) from error

    return in_rounds(settings, turn, range(repeats))


def show(table: Table) -> None:
    print_tables([how_to_decide(table)])
