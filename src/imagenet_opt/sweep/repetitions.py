"""Compares the settings of a sweep that has several seeds: jobs that differ only in their seed are repetitions."""

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import geometric_mean, median

from imagenet_opt.display.table import Cell, Column, Table, ratio_cells, verdict_in_words
from imagenet_opt.measure.stats.block_ratios import UNDECIDED, Ratio, block_ratios, verdict
from imagenet_opt.measure.stats.sequential import more_rounds
from imagenet_opt.sweep.rows import NONE, Row, outcome, speed, varying

SEED = "seed"
_ADD_SEEDS = (
    f"To decide what is {UNDECIDED}, run the same command with more seeds and the same hydra.sweep.dir: jobs that have "
    "finished are not run again."
)
_SEED_FIRST = (
    "The jobs of a setting ran one after the other, so a machine that changed its speed meanwhile counts as a "
    f"difference: type {SEED}= before the other overrides, and settings take turns."
)


@dataclass(frozen=True)
class Repetitions:
    """Jobs by setting, one for each seed, in the same order of seeds. A setting is the values of the other parameters,
    as typed."""

    jobs: dict[str, list[Row]]

    @cached_property
    def rates(self) -> dict[str, list[float]]:
        """Images per second by setting, one value for each seed."""
        return {setting: list(map(speed, jobs)) for setting, jobs in self.jobs.items()}

    @property
    def take_turns(self) -> bool:
        """Whether all settings ran with one seed before any ran with the next seed."""
        rounds = [[row["job"] for row in jobs] for jobs in zip(*self.jobs.values(), strict=True)]
        return all(max(before) < min(after) for before, after in pairwise(rounds))

    @property
    def fastest(self) -> str:
        return max(self.rates, key=lambda setting: geometric_mean(self.rates[setting]))

    @cached_property
    def ratios(self) -> dict[str, Ratio]:
        """Of each other setting to the fastest one. The intervals allow for all pairs of settings, since the
        measurements chose the pairs that are compared."""
        pairs = [(setting, self.fastest) for setting in self.jobs if setting != self.fastest]
        ratios = block_ratios(self.rates, pairs, num_comparisons=math.comb(len(self.jobs), 2))
        return {setting: ratio for (setting, _), ratio in zip(pairs, ratios, strict=True)}

    def table(self) -> Table:
        """A row for each setting, with the time of the further jobs that will probably decide it."""
        verdicts = {setting: verdict(ratio) for setting, ratio in self.ratios.items()}
        going_on = {self.fastest, *(setting for setting, word in verdicts.items() if word == UNDECIDED)}
        round_seconds = sum(median(row["seconds"] for row in self.jobs[setting]) for setting in going_on)
        rows: list[tuple[Cell, ...]] = []
        for setting, rates in self.rates.items():
            if (ratio := self.ratios.get(setting)) is None:
                rows.append((setting, median(rates), None, None, "the fastest"))
                continue
            more_seconds = more_rounds(ratio, len(rates)) * round_seconds
            times, interval, _ = ratio_cells(ratio)
            rows.append((setting, median(rates), times, interval, verdict_in_words(ratio, more_seconds)))
        columns = (
            *(Column("setting"), Column("images/s", "{:,.0f}"), Column("times the fastest", "{:.2f}")),
            *(Column("95 % interval"), Column("verdict")),
        )
        notes = [*([_ADD_SEEDS] * (UNDECIDED in verdicts.values())), *([_SEED_FIRST] * (not self.take_turns))]
        best, num_slower = self.rates[self.fastest], list(verdicts.values()).count("slower")
        finding = (
            f"{self.fastest} was the fastest of {len(self.jobs)} settings, with {median(best):,.0f} images/s in "
            f"{len(best)} jobs; slower for certain: {num_slower} of the other {len(verdicts)}."
        )
        return Table("settings, repeated with several seeds", columns, tuple(rows), tuple(notes), finding=finding)


def repetitions(rows: list[Row]) -> Repetitions | None:
    """The settings in which no job failed or had too few steps, with the seeds that all of these settings have; None
    with less than two settings or two seeds."""
    names = [name for name in varying(rows) if name != SEED]
    by_seed, left_out = defaultdict[str, dict[str, Row]](dict), set[str]()
    for row in rows:
        values = row["parameters"]
        setting = " ".join(f"{name}={values.get(name, NONE)}" for name in names)
        by_seed[setting][values.get(SEED, NONE)] = row
        if outcome(row) != "ok" or math.isnan(speed(row)):
            left_out.add(setting)
    for setting in left_out:
        del by_seed[setting]
    seeds = [seed for seed in next(iter(by_seed.values()), ()) if all(seed in jobs for jobs in by_seed.values())]
    if len(by_seed) < 2 or len(seeds) < 2:
        return None
    return Repetitions({setting: [jobs[seed] for seed in seeds] for setting, jobs in by_seed.items()})
