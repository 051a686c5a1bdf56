"""Compares the settings of a sweep with several seeds: jobs that differ only in their seed are repetitions."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import geometric_mean, median

from imagenet_opt.compare.gain import gains
from imagenet_opt.display.table import Cell, Column, Table
from imagenet_opt.measure.stats.paired_ratios import UNDECIDED
from imagenet_opt.sweep.rows import NONE, Row, best, outcome, speed, varying

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


Jobs = dict[str, list[Row]]
"""Jobs by setting. A setting is the values of the parameters that vary, without the seed."""
_COLUMNS = (
    *(Column("setting"), Column("images/s", "{:,.0f}"), Column("times the fastest", "{:.2f}")),
    *(Column("95 % interval"), Column("verdict")),
)


@dataclass(frozen=True)
class Repetitions:
    """best: the jobs of the fastest setting; if settings are not compared, the fastest job. sentence: the result, or
    why settings are not compared. table: a row for each setting; None if they are not compared."""

    best: list[Row]
    sentence: str
    table: Table | None = None


def repetitions(rows: list[Row]) -> Repetitions:
    """Compare the settings with the seeds that all of them have. A failed job, or one with too few steps, does not
    count."""
    if isinstance(found := _settings(rows), str):
        winner = best(rows)
        return Repetitions([winner] if winner is not None else [], found)
    jobs, left_out = found
    rates = {setting: list(map(speed, of_setting)) for setting, of_setting in jobs.items()}
    means = {setting: geometric_mean(values) for setting, values in rates.items()}
    fastest = max(means, key=lambda setting: means[setting])
    compared = gains(
        rates,
        [(setting, fastest) for setting in jobs if setting != fastest],
        num_comparisons=math.comb(len(jobs), 2),  # the measurements chose the pairs that are compared
        round_seconds=sum(median(row["seconds"] for row in of_setting) for of_setting in (jobs | left_out).values()),
    )
    verdicts = Counter(gain.verdict for gain in compared.values())
    sentence = (
        f"{fastest} had the most images/s of {len(jobs)} settings, {means[fastest]:,.0f} in {len(rates[fastest])} jobs"
        f"; the others: {', '.join(f'{num} {word}' for word, num in verdicts.items())}."
    )
    cells: dict[str, tuple[Cell, ...]] = {setting: gain.cells[1:] for (setting, _), gain in compared.items()}
    cells[fastest] = (None, None, "the fastest")
    notes = [f"Not compared, for lack of two jobs with a reliable speed: {'; '.join(left_out)}."] if left_out else []
    if not _take_turns(jobs):
        notes.append(_SEED_FIRST)
    elif UNDECIDED in verdicts:
        notes.append(_ADD_SEEDS)
    lines = tuple((setting, mean, *cells[setting]) for setting, mean in means.items())
    table = Table("settings, over several seeds", _COLUMNS, lines, tuple(notes), finding=sentence)
    return Repetitions(jobs[fastest], sentence, table)


def _settings(rows: list[Row]) -> tuple[Jobs, Jobs] | str:
    """Jobs of each setting, one for each seed that all settings have, in the same order; and the jobs of the settings
    that are left out. Returns the reason if there is nothing to compare."""
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
    return {setting: [jobs[seed] for seed in seeds] for setting, jobs in repeated.items()}, left_out


def _take_turns(jobs: Jobs) -> bool:
    """Whether all settings ran with one seed before any ran with the next seed."""
    rounds = [[row["job"] for row in of_seed] for of_seed in zip(*jobs.values(), strict=True)]
    return all(max(before) < min(after) for before, after in pairwise(rounds))
