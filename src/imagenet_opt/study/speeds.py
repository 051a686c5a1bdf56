"""Measures the speeds of a study's configurations, its rows, in rounds in which the rows take turns."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median

from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.compare.rounds import Rounds, while_time_is_left
from imagenet_opt.compare.turn import Job, Turn, take_turn
from imagenet_opt.display.progress import say
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.measure.telemetry.torch_profile import PERMISSION, gaps_sentence
from imagenet_opt.study.plan import Row, Study


class Speeds:
    """Measures the rows of a study in rounds. rows: as measured; in a ladder, the rows after a row that failed in the
    first round lack its step."""

    def __init__(self, study: Study, cache: ResultCache) -> None:
        self.study, self.cache, self.rows = study, cache, study.rows
        self.rounds: Rounds[Turn] = Rounds({row.name: [] for row in self.rows}, reference=self.rows[0].name)
        self._failed_in = dict[str, int]()

    @property
    def turns(self) -> dict[str, list[Turn]]:
        """Of the rows that did not fail, and of the first row; one per round."""
        return {name: turns for name, turns in self.rounds.results.items() if turns and name not in self._failed_in}

    @property
    def failures(self) -> dict[str, str]:
        """The reasons, by the names of the rows that failed, without the first row."""
        return {
            name: f"in round {number + 1}: {self.rounds.failures[name]}" if number else self.rounds.failures[name]
            for name, number in self._failed_in.items()
        }

    @property
    def ended(self) -> str | None:
        """Why measuring ended early, as a sentence; None if it did not."""
        name = self.rows[0].name
        if (reason := self.rounds.failures.get(name)) is None:
            return None
        num = len(self.rounds.results[name])
        return (
            f"Measuring ended in round {num + 1}, as {name} failed, and all rows are compared with {name}: {reason}. "
            f"The table shows the {num} complete rounds; the same command measures the missing ones."
        )

    @property
    def num_missing(self) -> int | None:
        """Number of turns without a stored result; None with a budget, which decides it."""
        if (repeats := self.study.request.repeats) is None:
            return None
        return sum(not self.cache.has(key_of_turn(row, number)) for row in self.rows for number in range(repeats))

    def measure(self) -> None:
        """Measure as many rounds as requested, or as the budget allows. stderr shows failures at once.

        Raises ConfigError if the first row fails in the first round.
        """
        request, first = self.study.request, self.rows[0]
        numbers = range(request.repeats) if request.repeats is not None else self._while_time_is_left()
        self.rounds.run(self._turn, numbers, self._leave_out)
        if not self.rounds.results[first.name]:
            train = shlex.join(["python", "train.py", *first.overrides])
            raise ConfigError(
                f"study={request.name}: the first row, {first.name}, with which all rows are compared, cannot be "
                f"measured: {self.rounds.failures[first.name]}; fix the error of this run: {train}"
            )

    def _while_time_is_left(self) -> Iterator[int]:
        return while_time_is_left(
            Deadline(self.study.request.budget_seconds),
            lambda: round_seconds(self.turns),
            lambda number: self.cache.has(key_of_turn(self.rows[0], number)),
        )

    def _turn(self, name: str, number: int) -> Turn:
        row = next(row for row in self.rows if row.name == name)
        of = "" if self.study.request.repeats is None else f" of {self.study.request.repeats}"
        turn = stored_turn(row, number, self.study, self.cache, f"round {number + 1}{of}: {name}")
        if row.step is None and number == 0 and (sentence := gaps(name, [turn], has_gpu=self.study.plan.has_gpu)):
            say(sentence)
        return turn

    def _leave_out(self, name: str, number: int, reason: str) -> None:
        self._failed_in[name] = number
        self.rows = self.study.plan.rows(self._failed_in)
        say(f"{name} failed: {self.failures[name]}")


def key_of_turn(row: Row, number: int) -> dict[str, object]:
    """Identifies the stored result of a row in round `number`."""
    return {"row": row.name, "config": row.config, "round": number}


def stored_turn(row: Row, number: int, study: Study, cache: ResultCache, label: str) -> Turn:
    """The stored turn of a row in round `number`; if there is none, measure it. Raises TurnFailed."""
    job = Job(row.overrides, study.request.seconds, study.cold)
    return Turn(**cache.take(key_of_turn(row, number), lambda: asdict(take_turn(job, cache.folder)), label))


def round_seconds(turns: Mapping[str, Sequence[Turn]]) -> float:
    """Time of a round of all rows."""
    return sum(median(turn.seconds for turn in of_row) for of_row in turns.values())


def gaps(name: str, turns: Sequence[Turn], *, has_gpu: bool) -> str | None:
    """A sentence about how much closing the gaps between kernels could gain. None without a GPU."""
    kernels = [turn.kernel_seconds for turn in turns if turn.kernel_seconds]
    if kernels:
        step_seconds = median(turn.step_seconds for turn in turns if turn.kernel_seconds)
        return f"{name}: {gaps_sentence(step_seconds, median(kernels))}."
    return f"{name}: kernel times could not be seen: {PERMISSION}." if has_gpu else None
