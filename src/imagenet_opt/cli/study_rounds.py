"""The turns of a study, of which one that fails ends no other."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from imagenet_opt.cli.progress import announced
from imagenet_opt.cli.study_request import Request
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure.interleave import Rounds, TurnFailed, interleave

T = TypeVar("T")


def rounds_of(turns: Mapping[str, Callable[[], T]], request: Request, label: str = "{}") -> Rounds[T]:
    """All in turns, each announced by its name in this `label`.

    Raises ImagenetOptError where a turn raises one before anything was measured: it is what the user asked for that
    cannot be. Later such a turn has failed, and the others go on; ConfigError where all have.
    """
    num_measured = 0

    def attempt(turn: Callable[[], T]) -> T:
        nonlocal num_measured
        try:
            found = turn()
        except ImagenetOptError as error:
            if not num_measured:
                raise
            raise TurnFailed(str(error)) from error
        num_measured += 1
        return found

    with announced(request.repeats * len(turns)) as announce:
        rounds = interleave(
            {name: partial(attempt, turn) for name, turn in turns.items()},
            repeats=request.repeats,
            before_turn=lambda number, name, done: announce(label.format(name)),
        )
    if len(rounds.failures) == len(turns):
        raise ConfigError(f"study={request.name}: {rounds.reasons[0]}")
    return rounds
