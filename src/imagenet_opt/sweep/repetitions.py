"""Compares the settings of a sweep with several seeds: jobs that differ only in their seed are repetitions."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import geometric_mean, median

from imagenet_opt.display.table import Cell, Column, Table, ratio_cells, verdict_in_words
from imagenet_opt.measure.stats.paired_ratios import UNDECIDED, Ratio, more_rounds, paired_ratios, verdict
from imagenet_opt.sweep.rows import NONE, Row, outcome, speed, varying

SEED = "seed"
_ONE_RUN_EACH = (
    "Each job ran once, and speeds vary by chance: to decide between jobs that are close, type seed=1,2,3,4 before the "
    "other overrides, so that each runs four times, or use imagenet-opt study."
)
_ADD_SEEDS = (
    f"To decide what is {UNDECIDED}, run the same command with more seeds after the present ones, and the same "
    "hydra.sweep.dir: jobs that have finished are not run again."
)
_SEED_FIRST = (
    "The jobs of a setting ran one after the other, so a machine that changed its speed meanwhile counts as a "
    f"difference. With {SEED}= before the other overrides, and another hydra.sweep.dir, settings take turns."
)


@dataclass(frozen=True)
class Repetitions:
    """Jobs by setting, one for each seed, in the same order of seeds. A setting is the values of the other parameters
    that vary. left_out: the jobs of settings that are not compared."""

    jobs: dict[str, list[Row]]
    left_out: dict[str, list[Row]]

    @cached_property
    def rates(self) -> dict[str, list[float]]:
        """Images per second by setting, one value for each seed."""
        return {setting: list(map(speed, jobs)) for setting, jobs in self.jobs.items()}

    @cached_property
    def fastest(self) -> str:
        return max(self.rates, key=lambda setting: geometric_mean(self.rates[setting]))

    @cached_property
    def ratios(self) -> dict[str, Ratio]:
        """Of each other setting to the fastest one. The intervals allow for all pairs of settings, since the
        measurements chose the pairs that are compared."""
        pairs = [(setting, self.fastest) for setting in self.jobs if setting != self.fastest]
        ratios = paired_ratios(self.rates, pairs, num_comparisons=math.comb(len(self.jobs), 2))
        return {setting: ratio for (setting, _), ratio in zip(pairs, ratios, strict=True)}

    @property
    def take_turns(self) -> bool:
        """Whether all settings ran with one seed before any ran with the next seed."""
        rounds = [[row["job"] for row in jobs] for jobs in zip(*self.jobs.values(), strict=True)]
        return all(max(before) < min(after) for before, after in pairwise(rounds))

    @cached_property
    def table(self) -> Table:
        """A row for each setting, with the time of further jobs that will probably decide it."""
        round_seconds = sum(median(row["seconds"] for row in jobs) for jobs in (self.jobs | self.left_out).values())
        rows: list[tuple[Cell, ...]] = []
        for setting, rates in self.rates.items():
            mean = geometric_mean(rates)
            if (ratio := self.ratios.get(setting)) is None:
                rows.append((setting, mean, None, None, "the fastest"))
                continue
            more_seconds = more_rounds(ratio) * round_seconds
            times, interval, _ = ratio_cells(ratio)
            rows.append((setting, mean, times, interval, verdict_in_words(ratio, more_seconds)))
        columns = (
            *(Column("setting"), Column("images/s", "{:,.0f}"), Column("times the fastest", "{:.2f}")),
            *(Column("95 % interval"), Column("verdict")),
        )
        return Table("settings, over several seeds", columns, tuple(rows), tuple(self._notes()), finding=self.finding)

    @property
    def finding(self) -> str:
        best, verdicts = self.rates[self.fastest], Counter(map(verdict, self.ratios.values()))
        counts = ", ".join(f"{num} {word}" for word, num in verdicts.items())
        return (
            f"{self.fastest} had the most images/s of {len(self.jobs)} settings, {geometric_mean(best):,.0f} in "
            f"{len(best)} jobs; the others: {counts}."
        )

    def _notes(self) -> list[str]:
        notes = []
        if self.left_out:
            notes.append(f"Not compared, for lack of two jobs with a reliable speed: {'; '.join(self.left_out)}.")
        if not self.take_turns:
            return [*notes, _SEED_FIRST]
        return [*notes, _ADD_SEEDS] if UNDECIDED in map(verdict, self.ratios.values()) else notes


def best_jobs(winner: Row | None, repeated: Repetitions | str) -> list[Row]:
    """The jobs of the fastest setting; without repetitions, the fastest job."""
    if isinstance(repeated, Repetitions):
        return repeated.jobs[repeated.fastest]
    return [winner] if winner is not None else []


def repetitions(rows: list[Row]) -> Repetitions | str:
    """The settings with the seeds that all of them have. A failed job, or one with too few steps, does not count.

    Returns the reason if there is nothing to compare.
    """
    names = varying(rows)
    if SEED not in names:
        return _ONE_RUN_EACH
    names.remove(SEED)
    all_jobs, timed = defaultdict[str, list[Row]](list), defaultdict[str, dict[str, Row]](dict)
    for row in rows:
        values = row["parameters"]
        setting = " ".join(f"{name}={values.get(name, NONE)}" for name in names)
        all_jobs[setting].append(row)
        if outcome(row) == "ok" and not math.isnan(speed(row)):
            if (seed := values.get(SEED, NONE)) in timed[setting]:
                return f"Settings are not compared: {setting} ran twice with {SEED}={seed}."
            timed[setting][seed] = row
    repeated = {setting: jobs for setting, jobs in timed.items() if len(jobs) > 1}
    seeds = [seed for seed in next(iter(repeated.values()), ()) if all(seed in jobs for jobs in repeated.values())]
    if len(repeated) < 2 or len(seeds) < 2:
        return "Settings are not compared: this needs two settings that have a reliable speed with the same two seeds."
    left_out = {setting: jobs for setting, jobs in all_jobs.items() if setting not in repeated}
    return Repetitions({setting: [jobs[seed] for seed in seeds] for setting, jobs in repeated.items()}, left_out)
