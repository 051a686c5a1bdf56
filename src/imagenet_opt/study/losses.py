"""Checks whether a step changes the loss: compares loss curves with and without it, and with other seeds."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from statistics import median

import numpy as np
from lightning.pytorch import seed_everything
from omegaconf import open_dict

from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.compare.turn import STOPS, Turn, apart
from imagenet_opt.config.build import at_one_size, device_of, make, num_classes_of
from imagenet_opt.config.compose import composed
from imagenet_opt.config.settled_acceleration import settle_acceleration
from imagenet_opt.display.progress import duration, say
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.memory import NoHalving, named_out_of_memory
from imagenet_opt.probe.throwaway_run import only, run_folder
from imagenet_opt.run.numbers import METRICS
from imagenet_opt.study.plan import Row, Study
from imagenet_opt.training.build_run import build_run

NUM_SEEDS = 3
_NUM_LOSSES = 20
"""Points of a loss curve."""
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


def measure_losses(
    study: Study, rows: Sequence[Row], turns: Mapping[str, Sequence[Turn]], cache: ResultCache
) -> Losses:
    """Compare the loss of each row with the loss of its base, with the same seed. The tolerance is the spread of the
    first row's losses over seeds. turns: by the names of the rows that did not fail."""
    first, *others = [row for row in rows if row.name in turns]
    losses = Losses(parities={row.name: row.other_loss for row in others if row.other_loss})
    if not (compared := [row for row in others if row.name not in losses.parities]):
        return losses
    curves = _Curves(losses.curves, study, turns, cache)
    names = {name for row in compared for name in row.pair or ()}
    firsts = [(first, number) for number in range(NUM_SEEDS)]
    curves.print_time([*firsts, *((row, 0) for row in others if row.name in names)])
    seeds = []
    for number in range(NUM_SEEDS):
        if isinstance(curve := curves.of(first, number), str):
            losses.parities |= {row.name: f"not compared, as {first.name} failed: {curve}" for row in compared}
            return losses
        seeds.append(curve)
    by_name = {row.name: row for row in rows}
    for row in compared:
        base = by_name[row.base or first.name]
        if isinstance(without := curves.of(base), str):
            losses.parities[row.name] = f"not compared, as {base.name} failed: {without}"
        else:
            curve = curves.of(row)
            losses.parities[row.name] = FAILED + curve if isinstance(curve, str) else parity(curve, without, seeds)
    return losses


@dataclass(frozen=True)
class LossJob:
    """steps: optimizer steps to train."""

    overrides: tuple[str, ...]
    steps: int


class _Curves:
    """Trains the rows to get their loss curves. curves: by row and seed; collects the curves that `of` returns."""

    def __init__(
        self,
        curves: dict[str, dict[int, list[float]]],
        study: Study,
        turns: Mapping[str, Sequence[Turn]],
        cache: ResultCache,
    ) -> None:
        self.curves, self.turns, self.cache = curves, turns, cache
        self.first, self.seed = study.rows[0].name, int(study.rows[0].config["seed"])
        self.num_steps, self.timed_seconds = study.request.parity_steps, study.request.seconds
        self.failures: dict[LossJob, str] = {}

    def of(self, row: Row, number: int = 0) -> list[float] | str:
        """Loss curve with the `number`th seed, or the reason for its failure. Each curve is trained once."""
        job = self._job(row, number)
        if job in self.failures:
            return self.failures[job]
        seconds, seed = self._seconds(row)[0], self.seed + number
        train = partial(apart, f"{__name__}.train", job, self.cache.folder, timed_seconds=seconds)
        try:
            curve: list[float] = self.cache.take(
                self._key(row, number), train, f"loss of {self.num_steps} steps: {row.name}, seed {seed}"
            )
        except TurnFailed as error:
            self.failures[job] = str(error)
            return self.failures[job]
        self.curves.setdefault(row.name, {})[seed] = curve
        return curve

    def _job(self, row: Row, number: int) -> LossJob:
        return LossJob((*row.overrides, f"seed={self.seed + number}"), self.num_steps)

    def _key(self, row: Row, number: int) -> dict[str, object]:
        return {"row": row.name, "config": row.config, "loss_steps": self.num_steps, "seed": self.seed + number}

    def _seconds(self, row: Row) -> tuple[float, float]:
        """Estimated training time of a row, from its speed or that of the first row, without and with the start of the
        process."""
        turns = self.turns.get(row.name) or self.turns[self.first]
        training = self.num_steps * turns[0].batch_size / turns[0].full
        start = median(turn.seconds for turn in turns) - 3 * self.timed_seconds
        return training, training + max(0.0, start)

    def print_time(self, curves: Sequence[tuple[Row, int]]) -> None:
        """Print on stderr how long the training of these rows, each with the number of its seed, will take. Stored
        curves take no time."""
        new = [row for row, number in curves if not self.cache.has(self._key(row, number))]
        if new:
            time = duration(sum(self._seconds(row)[1] for row in new))
            say(
                f"comparing losses trains {self.num_steps} steps {len(new)} times, about {time} with the start of each "
                "process; --parity 0 leaves it out"
            )


def train(job: LossJob) -> list[float]:
    """Train and return the mean loss of each twentieth of the steps.

    Raises ImagenetOptError; OutOfMemory instead of halving micro-batches.
    """
    config = composed((*job.overrides, STOPS))
    at_one_size(config)
    with open_dict(config):  # for callbacks
        config.model.num_classes = num_classes_of(config.model.num_classes, data := make(config.data, "data"))
    settle_acceleration(config, len(data.train), device_of(config))
    with run_folder(only(config, callbacks=("acceleration", "mixing"))) as config:
        with open_dict(config):
            target = "imagenet_opt.run.loggers.metrics_csv.MetricsCsv"
            config.logger = {"csv": {"_target_": target, "folder": config.run_folder}}
            config.trainer.update({"max_steps": job.steps, "max_epochs": -1})
            config.trainer.log_every_n_steps = max(1, job.steps // _NUM_LOSSES)
        seed_everything(config.seed, verbose=False)
        run = build_run(config)
        run.trainer.callbacks.append(NoHalving())  # type: ignore[attr-defined]
        with named_out_of_memory(config):
            run.trainer.fit(run.model, datamodule=run.data, weights_only=True)
        with (run.folder / METRICS).open() as lines:
            losses = [float(row["train/loss"]) for row in csv.DictReader(lines) if row.get("train/loss")]
    if not losses:
        raise ConfigError("no loss was logged; raise --parity")
    return losses
