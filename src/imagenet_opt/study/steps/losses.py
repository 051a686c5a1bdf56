"""Checks whether a step changes the loss: compares loss curves with and without it, and with other seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from statistics import median

import numpy as np

from imagenet_opt.display.progress import duration
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.study.result_cache import ResultCache, say
from imagenet_opt.study.steps.plan import Row, Study
from imagenet_opt.study.steps.turn import Speeds, isolated
from imagenet_opt.study.steps.worker import LossJob

NUM_SEEDS = 3
FAILED = "failed: "
"""Start of the reason why the losses of a row were not compared, if its training failed."""


@dataclass(frozen=True)
class Parity:
    """Comparison of two loss curves.

    distance: root mean square difference. spread: the largest distance between two seeds of one configuration.
    """

    distance: float
    spread: float

    @property
    def agrees(self) -> bool:
        return self.distance <= self.spread

    def __str__(self) -> str:
        if math.isnan(self.distance):
            return "the loss is not finite"
        return f"{'same' if self.agrees else 'DIFFERS'}: {self.distance:.3f}, seeds {self.spread:.3f}"


def parity(curve: Sequence[float], base: Sequence[float], seeds: Sequence[Sequence[float]]) -> Parity:
    """Compare a loss curve with `base`, which was trained on the same batches. All curves have the same length.

    seeds: curves of one configuration with different seeds. Raises ValueError for fewer than two of them.
    """
    if len(seeds) < 2:
        raise ValueError(f"{len(seeds)} seeds have no spread")
    return Parity(distance(curve, base), max(distance(a, b) for a, b in combinations(seeds, 2)))


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Root mean square difference; nan if a curve is not finite."""
    root = math.sqrt(float(np.mean((np.array(a) - np.array(b)) ** 2)))
    return root if math.isfinite(root) else math.nan


@dataclass
class Losses:
    """curves: loss curve by row and seed. parities: by row, the comparison, or the reason why there is none."""

    curves: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    parities: dict[str, Parity | str] = field(default_factory=dict)


def measure_losses(study: Study, speeds: Speeds, cache: ResultCache) -> Losses:
    """Compare the loss of each row with the loss of its base, with the same seed. The tolerance is the spread of the
    first row's losses over seeds."""
    first, *others = [row for row in speeds.rows if row.name not in speeds.failures]
    losses = Losses(parities={row.name: row.other_loss for row in others if row.other_loss})
    if not (rows := [row for row in others if row.name not in losses.parities]):
        return losses
    curves = _Curves(losses.curves, study, speeds, cache)
    names = {name for row in rows for name in row.pair or ()}
    firsts = [(first, number) for number in range(NUM_SEEDS)]
    curves.print_time([*firsts, *((row, 0) for row in others if row.name in names)])
    seeds = []
    for number in range(NUM_SEEDS):
        if isinstance(curve := curves.of(first, number), str):
            losses.parities |= {row.name: f"not compared, as {first.name} failed: {curve}" for row in rows}
            return losses
        seeds.append(curve)
    by_name = {row.name: row for row in speeds.rows}
    for row in rows:
        base = by_name[row.base or first.name]
        if isinstance(without := curves.of(base), str):
            losses.parities[row.name] = f"not compared, as {base.name} failed: {without}"
        else:
            curve = curves.of(row)
            losses.parities[row.name] = FAILED + curve if isinstance(curve, str) else parity(curve, without, seeds)
    return losses


class _Curves:
    """Trains the rows to get their loss curves. curves: by row and seed; collects the curves that `of` returns."""

    def __init__(
        self, curves: dict[str, dict[int, list[float]]], study: Study, speeds: Speeds, cache: ResultCache
    ) -> None:
        self.curves, self.speeds, self.cache = curves, speeds, cache
        self.seed = int(speeds.rows[0].config["seed"])
        self.num_steps, self.timed_seconds = study.request.parity_steps, study.request.seconds
        self.failures: dict[LossJob, str] = {}

    def of(self, row: Row, number: int = 0) -> list[float] | str:
        """Loss curve with the `number`th seed, or the reason for its failure. Each curve is trained once."""
        job = self._job(row, number)
        if job in self.failures:
            return self.failures[job]
        seconds, seed = self._seconds(row)[0], self.seed + number
        label = f"loss of {self.num_steps} steps: {row.name}, seed {seed}"
        train = partial(isolated, "losses", job, self.cache.folder, timed_seconds=seconds)
        try:
            curve: list[float] = self.cache.take(job, 0, train, config=row.config, label=label)
        except TurnFailed as error:
            self.failures[job] = str(error)
            return self.failures[job]
        self.curves.setdefault(row.name, {})[seed] = curve
        return curve

    def _job(self, row: Row, number: int) -> LossJob:
        return LossJob((*row.overrides, f"seed={self.seed + number}"), self.num_steps)

    def _seconds(self, row: Row) -> tuple[float, float]:
        """Estimated training time of a row, from its speed or that of the first row, without and with the start of the
        process; the latter is nan if it is unknown."""
        turns = self.speeds.turns.get(row.name) or self.speeds.turns[self.speeds.rows[0].name]
        training = self.num_steps * (turns[0]["batch_size"] or 0.0) / (turns[0]["full"] or 1.0)
        each = [seconds for speed in turns if (seconds := speed.get("turn_seconds")) is not None]
        start = max(0.0, median(each) - 2 * self.timed_seconds) if each else math.nan
        return training, training + start

    def print_time(self, curves: Sequence[tuple[Row, int]]) -> None:
        """Print on stderr how long the training of these rows, each with the number of its seed, will take. Stored
        curves take no time."""
        new = [row for row, number in curves if not self.cache.has(self._job(row, number), 0, config=row.config)]
        if new:
            seconds = sum(self._seconds(row)[1] for row in new)
            time = "" if math.isnan(seconds) else f", about {duration(seconds)} with the start of each process"
            say(f"comparing losses trains {self.num_steps} steps {len(new)} times{time}; --parity 0 leaves it out")
