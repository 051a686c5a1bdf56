"""Checks whether a step changes the loss: compares loss curves with and without it, and with other seeds."""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

import numpy as np

from imagenet_opt.config.compose import composed
from imagenet_opt.display.progress import duration
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.study.result_cache import ResultCache
from imagenet_opt.study.steps.plan import Row, Study
from imagenet_opt.study.steps.speeds import Speed, Speeds, isolated
from imagenet_opt.study.steps.worker import LossJob

NUM_SEEDS = 3
FAILED = "failed: "
"""How it begins why the loss of a row was not compared that could not be trained."""


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


def measure_losses(study: Study, speeds: Speeds, cache: ResultCache, report: Callable[[str], None]) -> Losses:
    """Compare the losses of each row with those of its base, same seed; other seeds of the first row give the
    tolerance."""
    first, *others = [row for row in speeds.rows if row.name not in speeds.failures]
    losses = Losses(parities={row.name: row.other_loss for row in others if row.other_loss})
    if not (rows := [row for row in others if row.name not in losses.parities]):
        return losses
    curves, seeds = _Curves(study, speeds, losses, cache, report), []
    names = {name for row in rows for name in row.pair or ()}
    firsts = [(first, number) for number in range(NUM_SEEDS)]
    curves.tell_time([*firsts, *((row, 0) for row in others if row.name in names)])
    for _, number in firsts:
        if isinstance(curve := curves.of(first, number), str):
            losses.parities |= {row.name: f"not compared, as {first.name} failed: {curve}" for row in rows}
            return losses
        seeds.append(curve)
    by_name = {row.name: row for row in speeds.rows}
    for row in rows:
        losses.parities[row.name] = _compared(row, by_name[row.base or first.name], curves, seeds)
    return losses


def _compared(row: Row, base: Row, curves: "_Curves", seeds: list[list[float]]) -> Parity | str:
    if isinstance(without := curves.of(base), str):
        return f"not compared, as {base.name} failed: {without}"
    curve = curves.of(row)
    return f"{FAILED}{curve}" if isinstance(curve, str) else parity(curve, without, seeds)


class _Curves:
    """Trains the rows to get their loss curves, each once."""

    def __init__(
        self, study: Study, speeds: Speeds, losses: Losses, cache: ResultCache, report: Callable[[str], None]
    ) -> None:
        self.request, self.speeds, self.losses, self.cache, self.report = study.request, speeds, losses, cache, report
        self.seed = int(composed(study.request.overrides).seed)
        self.num_steps = study.request.parity_steps
        self.reasons: dict[tuple[str, int], str] = {}

    def training_seconds(self, row: Row) -> float:
        """Estimated training time of a row, from its measured speed, or from that of the first row."""
        speed = self._turns(row)[0]
        return self.num_steps * (speed["batch_size"] or 0.0) / (speed["full"] or 1.0)

    def seconds(self, row: Row) -> float | None:
        """Estimated time including the start of the process; None if it is unknown."""
        known = [taken for speed in self._turns(row) if (taken := speed.get("turn_seconds")) is not None]
        if not known:
            return None
        return self.training_seconds(row) + max(0.0, median(known) - 2 * self.request.seconds)

    def _turns(self, row: Row) -> list[Speed]:
        return self.speeds.turns.get(row.name) or self.speeds.turns[self.speeds.rows[0].name]

    def of(self, row: Row, number: int = 0) -> list[float] | str:
        """Loss curve with the `number`th seed, or the reason for its failure."""
        seed, curves = self.seed + number, self.losses.curves.setdefault(row.name, {})
        if seed not in curves and (row.name, seed) not in self.reasons:
            self.report(f"loss of {self.num_steps} steps: {row.name}, seed {seed}")
            job, seconds = self._job(row, seed), self.training_seconds(row)
            try:
                curves[seed] = self.cache.take(
                    job, 0, lambda: isolated("losses", job, self.request, timed_seconds=seconds), config=row.config
                )
            except TurnFailed as error:
                self.reasons[row.name, seed] = str(error)
        return curves[seed] if seed in curves else self.reasons[row.name, seed]

    def _job(self, row: Row, seed: int) -> LossJob:
        return LossJob((*row.overrides, f"seed={seed}"), self.num_steps)

    def tell_time(self, curves: Iterable[tuple[Row, int]]) -> None:
        """Say how long the training of these rows (with the number of the seed) will take; stored curves take no
        time."""
        jobs = [(row, self._job(row, self.seed + number)) for row, number in curves]
        new = [row for row, job in jobs if not self.cache.has(job, 0, config=row.config)]
        if not new:
            return
        words = f"comparing losses trains {self.num_steps} steps {len(new)} times"
        each = [seconds for row in new if (seconds := self.seconds(row)) is not None]
        if len(each) == len(new):
            words += f", about {duration(sum(each))} with the start of each process"
        print(f"{words}; --parity 0 leaves it out", file=sys.stderr)
