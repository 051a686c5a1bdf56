"""Whether a step leaves the loss as it is: curves of training with it and without, beside those of other seeds."""

import sys
from collections.abc import Callable, Collection

from imagenet_opt.cli.composition import composed
from imagenet_opt.cli.kept import Kept
from imagenet_opt.cli.progress import duration
from imagenet_opt.cli.study_apart import losses_of
from imagenet_opt.cli.study_outcome import Outcome
from imagenet_opt.cli.study_plan import Row
from imagenet_opt.cli.study_turn import LossJob
from imagenet_opt.measure.interleave import TurnFailed
from imagenet_opt.measure.parity import Parity, parity

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
    curves.tell_time({row.name for row in (*rows, *map(plan.base_of, rows))} - {first.name})
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

    @property
    def seconds(self) -> float:
        """That one of them takes, by what the first row was measured to do."""
        first = self.outcome.speeds[self.outcome.plan.rows[0].name][0]
        return self.num_steps * (first["batch_size"] or 0.0) / (first["full"] or 1.0)

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
        job = LossJob((*self.outcome.plan.overrides_of(row), f"seed={seed}"), self.num_steps)
        found = losses_of(job, self.outcome.request, self.kept, timed_seconds=self.seconds)
        self.outcome.losses.setdefault(row.name, {})[seed] = found
        return found

    def tell_time(self, names: Collection[str]) -> None:
        """names: of the rows that are trained, beside the first one."""
        num = NUM_SEEDS + len(names)
        words = f"comparing losses trains {self.num_steps} steps {num} times, about {duration(num * self.seconds)}"
        print(f"{words}; --parity 0 leaves it out", file=sys.stderr)
