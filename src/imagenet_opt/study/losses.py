"""Checks whether a step changes the loss: compares loss curves with and without it, and with other seeds."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache as cached
from functools import partial
from itertools import combinations

import numpy as np
from lightning.pytorch import seed_everything
from omegaconf import open_dict

from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.config.compose import composed
from imagenet_opt.display.progress import say
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.memory import NoHalving, named_out_of_memory
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throwaway_run import only, run_folder
from imagenet_opt.run.hooks import callbacks_of
from imagenet_opt.run.numbers import METRICS
from imagenet_opt.study.plan import Study
from imagenet_opt.study.turn import STOPS, RowResult, apart
from imagenet_opt.training.build_run import build_run

NUM_SEEDS = 3
_NUM_LOSSES = 20
"""Points of a loss curve."""


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


Parities = dict[str, Parity | str]
"""By row, the comparison of its loss, or the reason why there is none."""


def parity(curve: Sequence[float], base: Sequence[float], seeds: Sequence[Sequence[float]]) -> Parity:
    """Compare a loss curve with `base`, which was trained on the same batches. All curves have the same length. seeds:
    curves of one configuration with different seeds."""
    return Parity(distance(curve, base), max(distance(a, b) for a, b in combinations(seeds, 2)))


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Root mean square difference; nan if a curve is not finite."""
    root = math.sqrt(float(np.mean((np.array(a) - np.array(b)) ** 2)))
    return root if math.isfinite(root) else math.nan


def measure_losses(study: Study, results: Sequence[RowResult], cache: ResultCache) -> Parities:
    """Compare the loss of each row with the loss of its base, with the same seed. The tolerance is the spread of the
    first row's losses over seeds. Rows without turns are not compared."""
    measured = {result.row.name: result for result in results if result.turns}
    first, *others = [result.row for result in measured.values()]
    parities: Parities = {row.name: row.step.other_loss for row in others if row.step and row.step.other_loss}
    if not (compared := [row for row in others if row.name not in parities]):
        return parities
    num_steps, seed = study.request.parity_steps, int(first.config["seed"])
    say(f"comparing losses trains {num_steps} steps for each row; --parity 0 leaves it out")

    @cached
    def curve_of(name: str, number: int = 0) -> list[float] | str:
        """Loss curve with the `number`th seed, or the reason for its failure."""
        row, turn = measured[name].row, measured[name].turns[0]
        job = LossJob((*row.overrides, f"seed={seed + number}"), num_steps)
        key = {"row": name, "config": row.config, "loss_steps": num_steps, "seed": seed + number}
        seconds = num_steps * turn.batch_size / turn.full
        train = partial(apart, f"{__name__}.train", job, cache.folder, timed_seconds=seconds)
        try:
            curve: list[float] = cache.take(key, train, f"loss of {num_steps} steps: {name}, seed {seed + number}")
            return curve
        except TurnFailed as error:
            return str(error)

    for row in compared:
        base, curves = row.base or first.name, list[list[float]]()
        for name, number in (*((first.name, number) for number in range(NUM_SEEDS)), (base, 0), (row.name, 0)):
            if isinstance(curve := curve_of(name, number), str):
                why = "" if name == row.name else f"not compared, as {name} "
                parities[row.name] = f"{why}failed: {curve}"
                break
            curves.append(curve)
        else:
            *seeds, without, with_step = curves
            parities[row.name] = parity(with_step, without, seeds)
    return parities


@dataclass(frozen=True)
class LossJob:
    """steps: optimizer steps to train."""

    overrides: tuple[str, ...]
    steps: int


def train(job: LossJob) -> list[float]:
    """Train and return the mean loss of each twentieth of the steps.

    Raises ImagenetOptError; OutOfMemory instead of halving micro-batches.
    """
    testbed = Testbed(composed((*job.overrides, STOPS)), compared=True)
    with run_folder(only(testbed.config, callbacks=("acceleration", "mixing"))) as config:
        with open_dict(config):
            target = "imagenet_opt.run.loggers.csv_logger.MetricsCsv"
            config.logger = {"csv": {"_target_": target, "folder": config.run_folder}}
            config.trainer.update({"max_steps": job.steps, "max_epochs": -1})
            config.trainer.log_every_n_steps = max(1, job.steps // _NUM_LOSSES)
        seed_everything(config.seed, verbose=False)
        run = build_run(config)
        callbacks_of(run.trainer).append(NoHalving())
        with named_out_of_memory(config):
            run.trainer.fit(run.model, datamodule=run.data, weights_only=True)
        with (run.folder / METRICS).open() as lines:
            losses = [float(row["train/loss"]) for row in csv.DictReader(lines) if row.get("train/loss")]
    if not losses:
        raise ConfigError("no loss was logged; raise --parity")
    return losses
