"""The steps of a study that were worth it, measured together, as an experiment to train with."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from imagenet_opt import machine
from imagenet_opt.cli.kept import Kept
from imagenet_opt.cli.sheets import now
from imagenet_opt.cli.study_plan import Row
from imagenet_opt.cli.study_sheet import MEASURES, ratios_of, said
from imagenet_opt.cli.study_steps import Outcome, Speed, speed_of
from imagenet_opt.cli.study_turn import TogetherJob
from imagenet_opt.cli.tuned import host, how_to_train, write_tuned
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.blocks import Ratio, block_ratios
from imagenet_opt.measure.interleave import TurnFailed, interleave
from imagenet_opt.measure.parity import Parity
from imagenet_opt.measure.sheet import Column, Sheet
from imagenet_opt.measure.statistics import verdict


@dataclass(frozen=True)
class Gain:
    """Images per second of the start and of all that is worth keeping, and how many times those are."""

    before: float
    after: float
    ratio: Ratio

    def __str__(self) -> str:
        return f"{self.before:,.0f} -> {self.after:,.0f} images/s, {said(self.ratio)}"


def keep_winners(outcome: Outcome, kept: Kept, announce: Callable[[str], None]) -> Sheet:
    """Those that were faster in one measure, slower in none, and have the same loss; written where they are faster
    together too, to conf/experiment/tuned_<host>_study.yaml."""
    plan, reasons = outcome.plan, choose(outcome)
    winners = [row for row in plan.rows if row.name in reasons and reasons[row.name] is None]
    columns = (Column("step"), Column("worth keeping"))
    rows = tuple((name, "yes" if reason is None else f"no: {reason}") for name, reason in reasons.items())
    if not winners:
        return Sheet("Worth keeping", columns, rows, ("Nothing was worth it for sure; no experiment was written.",))
    words = [*plan.file.lasting, *(word for row in winners if row.step for word in plan.words(row.step))]
    try:
        gains = measure_together(outcome, words, kept, announce)
        note = _write(outcome, winners, words, gains, kept)
    except (TurnFailed, ConfigError) as error:
        note = f"No experiment was written: {error}"
    return Sheet("Worth keeping", columns, rows, (note,))


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


def measure_together(
    outcome: Outcome, words: list[str], kept: Kept, announce: Callable[[str], None]
) -> dict[str, Gain]:
    """By measure, what the winners give over the start, in turns of their own. Raises TurnFailed."""
    given, request = outcome.request.overrides, outcome.request
    start, whole = "the start", "all that is worth keeping"
    sides = {start: (*given, *outcome.plan.file.lasting), whole: (*given, *words)}
    numbers = dict.fromkeys(sides, 0)

    def turn(name: str) -> Speed:
        number, numbers[name] = numbers[name], numbers[name] + 1
        beside = sides[whole if name == start else start]
        return speed_of(TogetherJob(sides[name], request.seconds, outcome.cold, beside=beside), number, request, kept)

    turns = {name: partial(turn, name) for name in sides}
    rounds = interleave(turns, repeats=request.repeats, before_turn=lambda number, name, done: announce(name))
    for reason in rounds.reasons:
        raise TurnFailed(reason)
    found = {}
    for measure in MEASURES:
        rates = {name: [float(speed[measure] or 0.0) for speed in rounds.results[name]] for name in sides}
        (ratio,) = block_ratios(rates, [(whole, start)], num_comparisons=len(MEASURES))
        found[measure] = Gain(median(rates[start]), median(rates[whole]), ratio)
    return found


def _write(outcome: Outcome, winners: list[Row], words: list[str], gains: dict[str, Gain], kept: Kept) -> str:
    """Raises ConfigError."""
    told = [f"{name} {gains[measure]}" for measure, name in MEASURES.items()]
    if not _worth_it({verdict(gain.ratio) for gain in gains.values()}):
        raise ConfigError(f"together they are not faster for sure: {'; '.join(told)}")
    request, where = outcome.request, kept.machine
    header = [
        f"{now()}, {host()}, {where['gpu'] or where['cpu']}, {where['cpus']} CPUs, torch {machine.versions()['torch']}",
        request.command,
        f"{request.title}: all that is worth keeping against the start, in {request.repeats} rounds",
        *told,
        *(_line(outcome, row) for row in winners),
    ]
    file = write_tuned("study", words, header)
    return f"Together: {'; '.join(told)}; {how_to_train(file, request.overrides)}."


def _line(outcome: Outcome, row: Row) -> str:
    """What a winner is worth."""
    worth = ", ".join(f"{name} {said(ratios_of(outcome, measure)[row.name])}" for measure, name in MEASURES.items())
    with_it, without = outcome.plan.pair(row)
    return f"{row.name}: {worth}, loss {outcome.parities[row.name]} ({with_it} against {without})"
