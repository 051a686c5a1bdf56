"""Measures the speeds of a study's configurations, its rows, in rounds in which the rows take turns."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from statistics import median

from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.compare.rounds import Rounds, while_time_is_left
from imagenet_opt.compare.turn import Job, Turn, take_turn
from imagenet_opt.display.progress import say
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.study.plan import Row, Study


def measure_speeds(study: Study, cache: ResultCache) -> tuple[list[Row], Rounds[Turn]]:
    """Measure as many rounds as requested, or as the budget allows; return the rows as they were measured.

    In a ladder, the rows after a row that failed in the first round lack its step. A row that fails later keeps its
    rounds. stderr shows failures at once. Raises ConfigError if the first row fails in the first round.
    """
    request, rows, failed_first = study.request, study.rows, set[str]()
    first, rounds = study.rows[0], Rounds[Turn]({row.name: [] for row in study.rows})
    of = "" if request.repeats is None else f" of {request.repeats}"

    def turn(name: str, number: int) -> Turn:
        row = next(row for row in rows if row.name == name)
        return stored_turn(row, number, study, cache, f"round {number + 1}{of}: {name}")

    def leave_out(name: str, number: int, reason: str) -> None:
        nonlocal rows
        if number == 0 and name == first.name:
            train = shlex.join(["python", "train.py", *first.overrides])
            raise ConfigError(
                f"study={request.name}: the first row, {name}, with which all rows are compared, cannot be measured: "
                f"{reason}; fix the error of this run: {train}"
            )
        if number == 0:
            failed_first.add(name)
            rows = study.plan.rows(failed_first)
        rounds.failures[name] = f"in round {number + 1}: {reason}"
        say(f"{name} failed {rounds.failures[name]}")

    numbers = while_time_is_left(
        Deadline(request.budget_seconds),
        lambda: round_seconds(rounds.complete),
        lambda number: cache.has(key_of_turn(first, number)),
    )
    planned = numbers if request.repeats is None else range(request.repeats)
    rounds.run(turn, takewhile(lambda _: first.name not in rounds.failures, planned), leave_out)
    return rows, rounds


def key_of_turn(row: Row, number: int) -> dict[str, object]:
    """Identifies the stored result of a row in round `number`."""
    return {"row": row.name, "config": row.config, "round": number}


def stored_turn(row: Row, number: int, study: Study, cache: ResultCache, label: str) -> Turn:
    """The stored turn of a row in round `number`; if there is none, measure it. Raises TurnFailed."""
    job = Job(row.overrides, study.request.seconds, study.cold)
    return Turn(**cache.take(key_of_turn(row, number), lambda: asdict(take_turn(job, cache.folder)), label))


def round_seconds(turns: Mapping[str, Sequence[Turn]]) -> float:
    """Time of a round of all rows."""
    return sum(median(turn.seconds for turn in of_row) for of_row in turns.values() if of_row)
