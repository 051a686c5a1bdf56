"""Compares the settings of a sweep with several seeds: jobs that differ only in their seed are repetitions."""

import math
from collections import Counter, defaultdict
from statistics import geometric_mean, median

from imagenet_opt.compare.gain import gains
from imagenet_opt.display.table import Cell, Column, Plot, Table, series
from imagenet_opt.measure.stats.intervals import median_interval
from imagenet_opt.sweep.rows import Row, is_reliable, setting_of, speed, varying

SEED = "seed"
_NOTE = (
    f"Type {SEED}= before the other overrides: then settings take turns, and a machine that becomes slower meanwhile "
    "slows all of them. To decide what is undecided, run the same command with more seeds after the present ones, and "
    "the same hydra.sweep.dir: jobs that have finished are not run again."
)
_COLUMNS = (
    *(Column("setting"), Column("images/s", "{:,.0f}"), Column("times the fastest", "{:.2f}")),
    *(Column("95 % interval"), Column("verdict")),
)


def compared(rows: list[Row]) -> tuple[Table, list[Row]] | None:
    """Compare each setting with the fastest one, over the seeds that all of them have; and the jobs of the fastest.

    A setting is the values of the parameters that vary, without the seed. A job without a reliable speed does not
    count, nor a setting with less than two other jobs. None if less than two settings or two seeds are left.
    """
    names = [name for name in varying(rows) if name != SEED]
    timed = defaultdict[str, dict[str | None, Row]](dict)
    for row in filter(is_reliable, rows):
        timed[setting_of(row, names)][row.parameters.get(SEED)] = row
    repeated = {setting: jobs for setting, jobs in timed.items() if len(jobs) > 1}
    seeds = [seed for seed in next(iter(repeated.values()), ()) if all(seed in jobs for jobs in repeated.values())]
    if len(repeated) < 2 or len(seeds) < 2:
        return None
    jobs = {setting: [of_seed[seed] for seed in seeds] for setting, of_seed in repeated.items()}
    rates = {setting: list(map(speed, of_setting)) for setting, of_setting in jobs.items()}
    means = {setting: geometric_mean(values) for setting, values in rates.items()}
    fastest = max(means, key=means.__getitem__)
    return _table(rows, rates, means, fastest), jobs[fastest]


def _table(rows: list[Row], rates: dict[str, list[float]], means: dict[str, float], fastest: str) -> Table:
    found = gains(
        rates,
        [(setting, fastest) for setting in rates if setting != fastest],
        num_comparisons=math.comb(len(rates), 2),  # the measurements chose the pairs that are compared
        round_seconds=len(rates) * median(row.seconds for row in rows),
    )
    cells: dict[str, tuple[Cell, ...]] = {setting: gain.cells[1:] for (setting, _), gain in found.items()}
    cells[fastest] = (None, None, "the fastest")
    verdicts = Counter(gain.verdict for gain in found.values())
    finding = (
        f"{fastest} had the most images/s of {len(rates)} settings, {means[fastest]:,.0f} in {len(rates[fastest])} jobs"
        f"; the others: {', '.join(f'{num} {word}' for word, num in verdicts.items())}."
    )
    points = {setting: median_interval(values) for setting, values in rates.items()}
    plot = Plot("Images per second, medians with their intervals", "", "images/s", "bars", (series("", points),))
    lines = tuple((setting, mean, *cells[setting]) for setting, mean in means.items())
    return Table("settings, over several seeds", _COLUMNS, lines, (_NOTE,), (plot,), finding=finding)
