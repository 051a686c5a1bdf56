"""The steps of a study that were worth it, measured together, as an experiment to train with."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from imagenet_opt import machine
from imagenet_opt.config.experiment_file import host, how_to_train, write_tuned
from imagenet_opt.display.table import Column, Sheet
from imagenet_opt.display.terminal_table import now
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.block_ratios import UNDECIDED, Ratio, block_ratios, verdict
from imagenet_opt.measure.stats.rounds import TurnFailed, interleave
from imagenet_opt.study.result_cache import Kept
from imagenet_opt.study.steps.isolated_turns import plain, speed_of
from imagenet_opt.study.steps.losses import FAILED
from imagenet_opt.study.steps.outcome import Outcome, Speed
from imagenet_opt.study.steps.parity import Parity
from imagenet_opt.study.steps.plan import Row, key_of
from imagenet_opt.study.steps.table import MEASURES, ratios_of, said
from imagenet_opt.study.steps.worker import TogetherJob

START, NOW, TOGETHER = "the start", "how you train now", "all that is worth keeping"


@dataclass(frozen=True)
class Gain:
    """Images per second of something and of all that is worth keeping, and how many times those are."""

    before: float
    after: float
    ratio: Ratio

    def __str__(self) -> str:
        return f"{self.before:,.0f} -> {self.after:,.0f} images/s, {said(self.ratio)}"


Gains = dict[str, dict[str, Gain]]
"""Over START and over NOW, by measure; without NOW where that is the start."""


def keep_winners(outcome: Outcome, kept: Kept, announce: Callable[[str], None]) -> Sheet:
    """Those that were faster in one measure, slower in none, and have the same loss; written to
    conf/experiment/tuned_<host>_study.yaml where together they are that too, over the start and over what the user
    has."""
    plan, reasons = outcome.plan, choose(outcome)
    winners = [row for row in plan.rows if row.name in reasons and reasons[row.name] is None]
    columns = (Column("step"), Column("worth keeping"))
    rows = tuple((name, "yes" if reason is None else f"no: {reason}") for name, reason in reasons.items())
    if not winners:
        return Sheet("Worth keeping", columns, rows, ("Nothing was worth it for sure; no experiment was written.",))
    try:
        words = words_of(outcome, winners)
        said = _written(outcome, winners, words, measure_together(outcome, words, kept, announce), kept)
    except ConfigError as error:
        said = [f"No experiment was written: {error}."]
    return Sheet("Worth keeping", columns, rows, tuple(said))


def words_of(outcome: Outcome, winners: list[Row]) -> list[str]:
    """Overrides that turn on what is worth it, below them those that turn off what does harm.

    Off is what the start has, for keys to which only harmful steps gave their value. What made no difference stays as
    the user trains: it made none to the plain start, which may have hidden what it is worth.
    """
    plan, harmful, harmless = outcome.plan, set[str](), set[str]()
    for row in plan.rows:
        if row.step:
            (harmful if _does_harm(outcome, row) else harmless).update(plan.words(row.step))
    on = [word for row in winners if row.step for word in plan.words(row.step)]
    off = set(map(key_of, harmful - harmless)) - set(map(key_of, on))
    return [*(word for word in plan.file.lasting if key_of(word) in off), *on]


def _does_harm(outcome: Outcome, row: Row) -> bool:
    """Whether it was slower, failed, or trains otherwise. A row that leaves a step out fails without the step."""
    found = outcome.parities.get(row.name)
    differs = isinstance(found, Parity) and not found.agrees
    failed = row.name in outcome.failures or (isinstance(found, str) and found.startswith(FAILED))
    ratios = [ratio for measure in MEASURES if (ratio := ratios_of(outcome, measure).get(row.name)) is not None]
    slower = any(verdict(ratio) == "slower" for ratio in ratios)
    return differs or slower or (failed and outcome.plan.file.order != "leave_one_out")


def choose(outcome: Outcome) -> dict[str, str | None]:
    """By step, why it is not kept; None for those that are: of steps that replace each other the best."""
    reasons = {row.name: why_not(outcome, row) for row in outcome.plan.rows if row.step is not None}
    full, compute = (ratios_of(outcome, measure) for measure in ("full", "compute"))
    for names in outcome.plan.alternatives():
        good = [name for name in names if reasons[name] is None]
        best = max(good, key=lambda name: (round(full[name].ratio, 2), compute[name].ratio), default=None)
        reasons |= {name: f"{best} is the better of those that replace each other" for name in good if name != best}
    return reasons


def why_not(outcome: Outcome, row: Row) -> str | None:
    """Why a step by itself is not worth keeping; None for one that is."""
    if row.name in outcome.failures:
        return "failed"
    verdicts = {verdict(ratios_of(outcome, measure)[row.name]) for measure in MEASURES}
    if not _worth_it(verdicts):
        return ", ".join(sorted(verdicts))
    found = outcome.parities.get(row.name)
    if not isinstance(found, Parity):
        return f"its loss was not compared ({found or '--parity 0'})"
    return None if found.agrees else f"another loss ({found})"


def _worth_it(verdicts: set[str]) -> bool:
    """Of both measures."""
    return "faster" in verdicts and "slower" not in verdicts


def measure_together(outcome: Outcome, words: list[str], kept: Kept, announce: Callable[[str], None]) -> Gains:
    """What these overrides give over the start and over the run as the user trains now, in turns of their own.

    Raises ConfigError where one of these fails.
    """
    given, request = outcome.request.overrides, outcome.request
    sides = {START: (*given, *outcome.plan.file.lasting), NOW: given, TOGETHER: (*given, *words)}
    if plain(sides[START]) == plain(sides[NOW]):
        del sides[NOW]
    speeds: dict[str, list[Speed]] = {name: [] for name in sides}

    def turn(name: str) -> None:
        beside = tuple(other for key, other in sides.items() if key != name)
        job = TogetherJob(sides[name], request.seconds, outcome.cold, beside)
        try:
            speeds[name].append(speed_of(job, len(speeds[name]), request, kept))
        except TurnFailed as error:
            raise ConfigError(f"{name}: {error}") from error

    interleave(
        {name: partial(turn, name) for name in sides},
        repeats=request.repeats,
        before_turn=lambda number, name, done: announce(name),
    )
    return _gains(speeds)


def _gains(speeds: dict[str, list[Speed]]) -> Gains:
    bases = [name for name in speeds if name != TOGETHER]
    found: Gains = {name: {} for name in bases}
    for measure in MEASURES:
        rates = {name: [float(speed[measure] or 0.0) for speed in some] for name, some in speeds.items()}
        pairs = [(TOGETHER, name) for name in bases]
        ratios = block_ratios(rates, pairs, num_comparisons=len(MEASURES) * len(pairs))
        for name, ratio in zip(bases, ratios, strict=True):
            found[name][measure] = Gain(median(rates[name]), median(rates[TOGETHER]), ratio)
    return found


def _written(outcome: Outcome, winners: list[Row], words: list[str], gains: Gains, kept: Kept) -> list[str]:
    """What they give together, line by line, and the file that has them, or why there is none. Raises ConfigError."""
    told = _told(gains)
    if reason := _no_gain(gains):
        return [*told, f"No experiment was written: {reason}."]
    if off := [word for word in words if word in outcome.plan.file.lasting]:
        told.append(f"Off, as it did harm: {' '.join(off)}")
    request, where = outcome.request, kept.machine
    header = [
        f"{now()}, {host()}, {where['gpu'] or where['cpu']}, {where['cpus']} CPUs, torch {machine.versions()['torch']}",
        request.command,
        f"{request.title}: {TOGETHER} against {' and '.join(gains)}, in {request.repeats} rounds",
        *told,
        *(_line(outcome, row) for row in winners),
    ]
    file = write_tuned("study", words, header)
    return [*told, f"{how_to_train(file, request.overrides)}."]


def _no_gain(gains: Gains) -> str | None:
    """Why all together is not worth a file; a user who trains like that already has no use for one."""
    verdicts = {name: {verdict(gain.ratio) for gain in found.values()} for name, found in gains.items()}
    if not _worth_it(verdicts[START]):
        return "together they are not faster for sure than the start"
    if "slower" in verdicts.get(NOW, ()):
        return f"together they are slower than {NOW}"
    if NOW in verdicts and not _worth_it(verdicts[NOW]) and UNDECIDED in verdicts[NOW]:
        return f"whether they are faster than {NOW} is {UNDECIDED}"
    if NOW in verdicts and not _worth_it(verdicts[NOW]):
        return f"no difference from {NOW}, so you have it all already"
    return None


def _told(gains: Gains) -> list[str]:
    """A line for each measure and what it was compared with."""
    return [
        f"Together, {measure}, over {name}: {found[key]}"
        for name, found in gains.items()
        for key, measure in MEASURES.items()
    ]


def _line(outcome: Outcome, row: Row) -> str:
    """What a winner is worth."""
    worth = ", ".join(f"{name} {said(ratios_of(outcome, measure)[row.name])}" for measure, name in MEASURES.items())
    with_it, without = outcome.plan.pair(row)
    return f"{row.name}: {worth}, loss {outcome.parities[row.name]} ({with_it} against {without})"
