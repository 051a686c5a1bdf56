"""The steps of a study that were worth it, measured together, as an experiment to train with."""

from collections.abc import Callable
from functools import partial

from imagenet_opt.cli.kept import Kept
from imagenet_opt.cli.study_plan import Row
from imagenet_opt.cli.study_sheet import MEASURES, ratios_of, said
from imagenet_opt.cli.study_steps import Outcome, Speed, speed_of
from imagenet_opt.cli.tuned import how_to_train, write_tuned
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.blocks import Ratio, block_ratios
from imagenet_opt.measure.interleave import TurnFailed, interleave
from imagenet_opt.measure.parity import Parity
from imagenet_opt.measure.sheet import Column, Sheet
from imagenet_opt.measure.statistics import verdict


def keep_winners(outcome: Outcome, kept: Kept, announce: Callable[[str], None]) -> Sheet:
    """Those that were faster in one measure, slower in none, and have the same loss; written where they are faster
    together too, to conf/experiment/tuned_<host>_study.yaml."""
    reasons = {row.name: why_not(outcome, row) for row in outcome.plan.rows if row.step is not None}
    winners = [row for row in outcome.plan.rows if row.name in reasons and reasons[row.name] is None]
    columns = (Column("step"), Column("worth keeping"))
    rows = tuple((name, "yes" if reason is None else f"no: {reason}") for name, reason in reasons.items())
    if not winners:
        return Sheet("Worth keeping", columns, rows, ("Nothing was worth it for sure; no experiment was written.",))
    words = [*outcome.plan.file.below, *(word for row in winners if row.step for word in outcome.plan.words(row.step))]
    try:
        together = measure_together(outcome, words, kept, announce)
        note = _write(outcome, winners, words, together)
    except (TurnFailed, ConfigError) as error:
        note = f"No experiment was written: {error}"
    return Sheet("Worth keeping", columns, rows, (note,))


def why_not(outcome: Outcome, row: Row) -> str | None:
    """Why a step is not kept; None for one that is."""
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
) -> dict[str, Ratio]:
    """By measure, what the winners give together over the start, in turns of their own. Raises TurnFailed."""
    given = outcome.request.overrides
    sides = {"the start": (*given, *outcome.plan.file.below), "all that is worth keeping": (*given, *words)}
    repeats = outcome.request.repeats
    numbers = dict.fromkeys(sides, repeats)  # after those of the rows, of which one may be the same

    def turn(name: str) -> Speed:
        number, numbers[name] = numbers[name], numbers[name] + 1
        return speed_of(sides[name], number, outcome, kept)

    turns = {name: partial(turn, name) for name in sides}
    rounds = interleave(turns, repeats=repeats, before_turn=lambda number, name, done: announce(name))
    for reason in rounds.failures.values():
        raise TurnFailed(reason)
    found = {}
    for measure in MEASURES:
        values = {name: [float(speed[measure] or 0.0) for speed in rounds.results[name]] for name in sides}
        start, whole = sides
        (found[measure],) = block_ratios(values, [(whole, start)], num_comparisons=len(MEASURES))
    return found


def _write(outcome: Outcome, winners: list[Row], words: list[str], together: dict[str, Ratio]) -> str:
    """Raises ConfigError."""
    told = ", ".join(f"{name} {said(together[measure])}" for measure, name in MEASURES.items())
    if not _worth_it({verdict(ratio) for ratio in together.values()}):
        raise ConfigError(f"together they are not faster for sure: {told}")
    header = [outcome.request.title, f"together: {told}", *(f"with {row.name}" for row in winners)]
    file = write_tuned("study", words, header)
    return f"Together: {told}; {how_to_train(file, outcome.request.overrides)}."
