"""Whether a step leaves the loss as it is: curves of training with it and without, beside those of other seeds."""

import sys
from collections.abc import Callable, Iterable
from statistics import median

from imagenet_opt.config.compose import composed
from imagenet_opt.display.progress import duration
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.study.result_cache import Kept
from imagenet_opt.study.steps.isolated_turns import has_losses, losses_of
from imagenet_opt.study.steps.outcome import Outcome, Speed
from imagenet_opt.study.steps.parity import Parity, parity
from imagenet_opt.study.steps.plan import Row
from imagenet_opt.study.steps.worker import LossJob

NUM_SEEDS = 3
FAILED = "failed: "
"""How it begins why the loss of a row was not compared that could not be trained."""


def compare_losses(outcome: Outcome, kept: Kept, announce: Callable[[str], None]) -> None:
    """The losses of every row against those of what it is compared with, same seed; beside them the first row's with
    other seeds."""
    plan, curves, seeds = outcome.plan, _Curves(outcome, kept, announce), []
    first, *others = [row for row in plan.rows if row.name not in plan.dropped]
    outcome.parities |= {row.name: reason for row in others if (reason := plan.other_loss(row))}
    if not (rows := [row for row in others if row.name not in outcome.parities]):
        return
    names = {row.name for row in (*rows, *map(plan.base_of, rows))}
    curves.tell_time(
        [*((first, number) for number in range(NUM_SEEDS)), *((one, 0) for one in others if one.name in names)]
    )
    for number in range(NUM_SEEDS):
        if isinstance(curve := curves.of(first, number), str):
            outcome.parities |= {row.name: f"not compared, as {first.name} failed: {curve}" for row in rows}
            return
        seeds.append(curve)
    for row in rows:
        outcome.parities[row.name] = _compared(row, plan.base_of(row), curves, seeds)


def _compared(row: Row, base: Row, curves: "_Curves", seeds: list[list[float]]) -> Parity | str:
    if isinstance(without := curves.of(base), str):
        return f"not compared, as {base.name} failed: {without}"
    found = curves.of(row)
    return f"{FAILED}{found}" if isinstance(found, str) else parity(found, without, seeds)


class _Curves:
    """Losses of rows, or why there are none, each measured once."""

    def __init__(self, outcome: Outcome, kept: Kept, announce: Callable[[str], None]) -> None:
        self.outcome, self.kept, self.announce = outcome, kept, announce
        self.seed = int(composed(outcome.request.overrides).seed)
        self.num_steps = outcome.request.parity_steps
        self.found: dict[tuple[str, int], list[float] | str] = {}

    def training_seconds(self, row: Row) -> float:
        """Of one of them, by what the row was measured to do, or else the first one."""
        speed = self._speeds(row)[0]
        return self.num_steps * (speed["batch_size"] or 0.0) / (speed["full"] or 1.0)

    def seconds(self, row: Row) -> float | None:
        """With the start of its process, which is what is left of the row's turns without the two stretches that they
        time. None where nobody knows how long those took."""
        known = [taken for speed in self._speeds(row) if (taken := speed.get("turn_seconds")) is not None]
        if not known:
            return None
        return self.training_seconds(row) + max(0.0, median(known) - 2 * self.outcome.request.seconds)

    def _speeds(self, row: Row) -> list[Speed]:
        return self.outcome.speeds.get(row.name) or self.outcome.speeds[self.outcome.plan.rows[0].name]

    def of(self, row: Row, number: int = 0) -> list[float] | str:
        """With the `number`th seed."""
        if (row.name, number) not in self.found:
            try:
                self.found[row.name, number] = self._measured(row, self.seed + number)
            except TurnFailed as error:
                self.found[row.name, number] = str(error)
        return self.found[row.name, number]

    def _measured(self, row: Row, seed: int) -> list[float]:
        self.announce(f"loss of {self.num_steps} steps: {row.name}, seed {seed}")
        job, seconds = self._job(row, seed), self.training_seconds(row)
        found = losses_of(job, self.outcome.request, self.kept, timed_seconds=seconds)
        self.outcome.losses.setdefault(row.name, {})[seed] = found
        return found

    def _job(self, row: Row, seed: int) -> LossJob:
        return LossJob((*self.outcome.plan.overrides_of(row), f"seed={seed}"), self.num_steps)

    def tell_time(self, asked: Iterable[tuple[Row, int]]) -> None:
        """asked: rows and which seed; those that were trained before take no time."""
        new = [row for row, number in asked if not has_losses(self._job(row, self.seed + number), self.kept)]
        if not new:
            return
        words = f"comparing losses trains {self.num_steps} steps {len(new)} times"
        each = [seconds for row in new if (seconds := self.seconds(row)) is not None]
        if len(each) == len(new):
            words += f", about {duration(sum(each))} with the start of each process"
        print(f"{words}; --parity 0 leaves it out", file=sys.stderr)
