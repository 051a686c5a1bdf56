"""Compares the settings of a sweep, by their speed and by their accuracy, over the jobs that repeat each of them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import comb, isnan
from statistics import geometric_mean, median

from imagenet_opt.compare.gain import gains
from imagenet_opt.display.table import Cell, Column, Plot, Series, Table, series
from imagenet_opt.measure.stats.intervals import CONFIDENCE, median_interval
from imagenet_opt.measure.stats.verdict import UNDECIDED, student_interval
from imagenet_opt.run.numbers import IMAGES_PER_SECOND
from imagenet_opt.sweep.rows import ACC1, SweepRow, accuracy, is_reliable, setting_of, speed, varying

SEED = "seed"
_LEARNING = {SEED, "optimizer", "schedule", "model.label_smoothing", "model.target_threshold"}
"""Keys, and groups of keys, that change what is learned and not the speed, except _KERNELS."""
_KERNELS = {"optimizer", *(f"optimizer.{name}" for name in ("name", "fused", "layer_decay"))}
_LOADING = {f"data.{name}" for name in ("num_workers", "prefetch_factor", "reads_in_flight", "copies", "cache_dir")}
"""Keys that change the speed and not what is learned."""
_LEAST_POINTS = 0.1
"""Smaller differences of accuracy are within the noise of seeds on ImageNet, sigma in conf/experiment."""
_SPEED_COLUMNS = (
    *(Column("setting"), Column("images/s", "{:,.0f}"), Column("times the fastest", "{:.2f}")),
    *(Column("95 % interval"), Column("verdict")),
)
_ACCURACY_COLUMNS = (
    *(Column("setting"), Column("acc1 %", "{:.1f}"), Column("95 % interval"), Column("points to the best", "{:+.1f}")),
    *(Column("interval of the points"), Column("verdict")),
)
_MORE_SEEDS = (
    f"To decide what is {UNDECIDED}, run the same command with more seeds after the present ones, and the same "
    "hydra.sweep.dir: jobs that have finished are not run again."
)
_TAKE_TURNS = (
    f"Type {SEED}= before the other overrides: then settings take turns, and a machine that becomes slower meanwhile "
    "slows all of them."
)


def may_change_speed(name: str) -> bool:
    """Whether a key may change images per second; a rate or a decay cannot."""
    return name in _KERNELS or not {name, name.partition(".")[0]} & _LEARNING


def may_change_accuracy(name: str) -> bool:
    """Whether a key may change what is learned; the loader's batches are the same for any number of workers."""
    return name != SEED and name not in _LOADING


@dataclass(frozen=True)
class Measure:
    """What settings are compared by. key: of a number in record.json. of: this number of a job. counts: whether a job
    has it. depends_on: whether a key may change the measure. best: a sentence with fields for the best job, the number
    of jobs and the best value."""

    key: str
    of: Callable[[SweepRow], float]
    counts: Callable[[SweepRow], bool]
    depends_on: Callable[[str], bool]
    best: str


SPEED = Measure(
    IMAGES_PER_SECOND, speed, is_reliable, may_change_speed, "Job {} was the fastest of {}, with {:,.0f} images/s."
)
ACCURACY = Measure(
    ACC1, accuracy, lambda row: not isnan(accuracy(row)), may_change_accuracy, "Job {} of {} had the best acc1, {:.1%}."
)


def measure_of(names: Iterable[str]) -> Measure:
    """What a search over these keys optimizes: the speed if each of them may change the speed, else the accuracy."""
    return SPEED if all(map(may_change_speed, names)) else ACCURACY


def compared(rows: list[SweepRow], measure: Measure) -> tuple[Table, list[SweepRow]] | None:
    """Compare each setting with the best one, over the repeats that all of them have; and the jobs of the best.

    A setting is the values of the varying keys on which the measure depends. A repeat is the values of the others, of
    an accuracy the seed alone: jobs with other workers and the same seed learn the same. A setting with less than two
    jobs that count is left out. None if less than two settings, or two repeats, are left; where only seeds vary, one
    setting has its mean accuracy.
    """
    names = [name for name in varying(rows) if measure.depends_on(name)]
    others = [SEED] if measure is ACCURACY else [name for name in varying(rows) if name not in names]
    found = defaultdict[str, dict[str, SweepRow]](dict)
    for row in filter(measure.counts, rows):
        found[setting_of(row, names) or "all jobs"][setting_of(row, others)] = row
    repeated = {setting: jobs for setting, jobs in found.items() if len(jobs) > 1}
    repeats = [each for each in next(iter(repeated.values()), ()) if all(each in jobs for jobs in repeated.values())]
    least = 1 if measure is ACCURACY and not names else 2
    if len(repeated) < least or len(repeats) < 2:
        return None
    jobs = {setting: [of_repeat[each] for each in repeats] for setting, of_repeat in repeated.items()}
    values = {setting: list(map(measure.of, of_setting)) for setting, of_setting in jobs.items()}
    seconds = len(values) * median(row.seconds for row in rows)
    table, best = _speeds(values, seconds) if measure is SPEED else _accuracies(values)
    return table, jobs[best]


def _speeds(rates: dict[str, list[float]], round_seconds: float) -> tuple[Table, str]:
    means = {setting: geometric_mean(values) for setting, values in rates.items()}
    order = sorted(means, key=means.__getitem__, reverse=True)
    found = gains(
        rates,
        [(setting, order[0]) for setting in order[1:]],
        num_comparisons=comb(len(rates), 2),  # the measurements chose the pairs that are compared
        round_seconds=round_seconds,
    )
    cells: dict[str, tuple[Cell, ...]] = {setting: gain.cells[1:] for (setting, _), gain in found.items()}
    finding = (
        f"{order[0]} had the most images/s of {len(rates)} settings, {means[order[0]]:,.0f} in {len(rates[order[0]])} "
        f"jobs; the others: {_counted(gain.verdict for gain in found.values())}."
    )
    points = {setting: median_interval(rates[setting]) for setting in order}
    plot = Plot("Images per second, medians with their intervals", "", "images/s", "bars", (series("", points),))
    lines = tuple((each, means[each], *cells.get(each, (None, None, "the fastest"))) for each in order)
    return Table(
        "settings by speed", _SPEED_COLUMNS, lines, (_TAKE_TURNS, _MORE_SEEDS), (plot,), finding=finding
    ), order[0]


def _accuracies(values: dict[str, list[float]]) -> tuple[Table, str]:
    """Student's intervals: of each mean, and of each difference to the best in the same repeats, corrected for all
    pairs."""
    percent = {setting: [100 * value for value in of_setting] for setting, of_setting in values.items()}
    means = {setting: student_interval(of_setting, 1 - CONFIDENCE) for setting, of_setting in percent.items()}
    order = sorted(means, key=means.__getitem__, reverse=True)
    best, verdicts, lines = order[0], list[str](), list[tuple[Cell, ...]]()
    for setting in order:
        mean, low, high = means[setting]
        interval = f"{max(0.0, low):.1f}-{min(100.0, high):.1f}" if _scatter(percent[setting]) else None
        row: tuple[Cell, ...] = (setting, mean, interval)
        if setting == best:
            lines.append((*row, None, None, "the best" if len(order) > 1 else None))
            continue
        behind = [ours - theirs for ours, theirs in zip(percent[setting], percent[best], strict=True)]
        difference, low, high = student_interval(behind, (1 - CONFIDENCE) / comb(len(values), 2))
        is_worse, is_same = high < 0 and _scatter(behind), -low < _LEAST_POINTS > high
        verdicts.append("worse" if is_worse else "no difference" if is_same else UNDECIDED)
        lines.append((*row, difference, f"{low:+.1f} to {high:+.1f}", verdicts[-1]))
    found = f"{means[best][0]:.1f} % in {len(values[best])} jobs"
    finding = f"{best} had the best acc1 of {len(values)} settings, {found}; the others: {_counted(verdicts)}."
    finding = finding if verdicts else f"acc1 is {found}."
    middle, low_ends, high_ends = zip(*(means[setting] for setting in order), strict=True)
    bars = Series("", tuple(order), middle, low_ends, high_ends)
    plot = Plot("acc1 with its interval", "", "acc1 %", "bars", (bars,))
    return Table(
        "settings by accuracy", _ACCURACY_COLUMNS, tuple(lines), (_MORE_SEEDS,), (plot,), finding=finding
    ), best


def _scatter(points: list[float]) -> bool:
    """Whether repeats differ; equal ones, as few validation images give, have an interval without a width."""
    return len({round(value, 3) for value in points}) > 1


def _counted(verdicts: Iterable[str]) -> str:
    return ", ".join(f"{num} {word}" for word, num in Counter(verdicts).items())
