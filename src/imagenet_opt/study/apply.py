"""Measures all useful steps of a study together and writes them as an experiment."""

from collections.abc import Sequence

from imagenet_opt import machine
from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.compare.turn import Turn
from imagenet_opt.config.experiment_file import host, how_to_train, write_tuned
from imagenet_opt.config.overrides import key_of
from imagenet_opt.display.progress import roughly, say
from imagenet_opt.display.table import Column, Table
from imagenet_opt.display.terminal_table import now
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.paired_ratios import UNDECIDED, paired_ratios, verdict
from imagenet_opt.study.compare import MEASURES, RowResult, Worths, worths_of
from imagenet_opt.study.losses import Parity
from imagenet_opt.study.plan import Row, StepsFile, Study
from imagenet_opt.study.speeds import round_seconds, stored_turn

START, NOW, TOGETHER = "the start", "how you train now", "all useful steps"
Gains = dict[str, Worths]
"""Gain of TOGETHER over START and over NOW, by the name of the other; without NOW if the user trains as START does."""


def keep_winners(study: Study, results: Sequence[RowResult], cache: ResultCache) -> Table:
    """Decide which steps to keep, and write them as an experiment if they pass the test together.

    A step is kept if it is faster in one measure, slower in none, and trains with the same loss. All kept steps
    together must be faster than the start and than the user's present configuration; then
    conf/experiment/tuned_<host>_study.yaml is written. Returns the table of decisions.
    """
    reasons = choose(results)
    winners = [result for result in results if reasons.get(result.row.name, "no step") is None]
    answers = {None: "yes", UNDECIDED: UNDECIDED}
    rows = tuple((name, answers.get(reason, f"no: {reason}")) for name, reason in reasons.items())
    lines = ["No step was certainly useful; no experiment was written."]
    if winners:
        try:
            words = words_of(study.plan.file, results, winners)
            num_rounds = max(study.request.num_rounds, *(len(result.turns) for result in results))
            start = {results[0].row.name: results[0].turns}
            seconds = 3 * num_rounds * round_seconds(start)
            time = f"{num_rounds} rounds, {roughly(seconds)} more"
            say(f"the kept steps together are compared with {START} and with {NOW}: {time}")
            gains = measure_together(study, words, cache, num_rounds=num_rounds)
            lines = _written(study, winners, words, gains, cache, num_rounds=num_rounds)
        except ConfigError as error:
            lines = [f"No experiment was written: {error}."]
    return Table("Worth keeping", (Column("step"), Column("worth keeping")), rows, tuple(lines))


def words_of(file: StepsFile, results: Sequence[RowResult], winners: Sequence[RowResult]) -> list[str]:
    """Overrides that switch the kept steps on, after overrides that switch harmful settings off.

    A setting is switched off if the start has it off and only harmful steps switched it on. Steps that made no
    difference keep the user's value, since their effect may only be hidden in the plain start.
    """
    harmful, harmless = set[str](), set[str]()
    for result in results:
        if result.row.step:
            does_harm = _does_harm(result, can_fail=file.order == "leave_one_out")
            (harmful if does_harm else harmless).update(result.row.own)
    on = [word for result in winners for word in result.row.own]
    off = set(map(key_of, harmful - harmless)) - set(map(key_of, on))
    return [*(word for word in file.lasting if key_of(word) in off), *on]


def _does_harm(result: RowResult, *, can_fail: bool) -> bool:
    """Whether the step was slower, failed, or changed the loss. In leave-one-out studies a failure is not the
    step's."""
    is_slower = "slower" in result.worth.verdicts
    return result.differs or is_slower or (result.has_failed and not can_fail)


def choose(results: Sequence[RowResult]) -> dict[str, str | None]:
    """For each step the reason why it is not kept, or None if it is kept. Of steps that replace each other, the first
    is kept, unless a later one is better for certain."""
    reasons = {result.row.name: why_not(result) for result in results if result.row.step}
    good: dict[str, list[RowResult]] = {}  # by the step that they replace
    for result in results:
        if (step := result.row.step) and reasons[step.name] is None:
            good.setdefault(step.instead_of or step.name, []).append(result)
    for first, *others in good.values():
        kept = first
        for other in others:
            kept = other if _is_better(other, kept, num_rivals=len(others)) else kept
        sentence = f"{kept.row.name} is kept instead: this step is not faster for certain"
        reasons |= {result.row.name: sentence for result in (first, *others) if result is not kept}
    return reasons


def _is_better(step: RowResult, other: RowResult, *, num_rivals: int) -> bool:
    """Whether the row of `step` is faster than the row of `other` in one measure, and slower in none, in the rounds
    that both have. num_rivals: number of such comparisons, which shall all be right."""
    verdicts = set()
    for name in MEASURES:
        values = {result.row.name: result.rates(name) for result in (step, other)}
        pair, num_comparisons = (step.row.name, other.row.name), len(MEASURES) * num_rivals
        verdicts.add(verdict(paired_ratios(values, [pair], num_comparisons=num_comparisons)[0]))
    return "faster" in verdicts and "slower" not in verdicts


def why_not(result: RowResult) -> str | None:
    """The reason why a step is not worth keeping by itself; None if it is."""
    if result.failure is not None:
        return "failed"
    if not result.worth.is_gain:
        both = result.worth.verdicts
        return UNDECIDED if UNDECIDED in both and "slower" not in both else ", ".join(sorted(both))
    if not isinstance(result.parity, Parity):
        return f"its loss was not compared ({result.parity or '--parity 0'})"
    return f"another loss ({result.parity})" if result.differs else None


def measure_together(study: Study, words: list[str], cache: ResultCache, *, num_rounds: int) -> Gains:
    """Compare these overrides with the start and with the user's present configuration, in rounds of their own.

    Raises ConfigError if one of the configurations fails.
    """
    own_by_name = {START: study.plan.file.lasting, NOW: (), TOGETHER: tuple(words)}
    rows = {name: Row(name, None, own, (*study.request.overrides, *own)) for name, own in own_by_name.items()}
    if rows[START].config == rows[NOW].config:
        del rows[NOW]

    def turn(name: str, number: int) -> Turn:
        return stored_turn(rows[name], number, study, cache, f"together, round {number + 1} of {num_rounds}: {name}")

    def stop(name: str, number: int, reason: str) -> None:
        raise ConfigError(f"{name}: {reason}")

    rounds: Rounds[Turn] = Rounds({name: [] for name in rows})
    rounds.run(turn, range(num_rounds), stop)
    worths = worths_of(rounds.results, [(TOGETHER, name) for name in rows if name != TOGETHER])
    return {base: worth for (_, base), worth in worths.items()}


def _written(
    study: Study,
    winners: Sequence[RowResult],
    words: list[str],
    gains: Gains,
    cache: ResultCache,
    *,
    num_rounds: int,
) -> list[str]:
    """Write the experiment, and return lines about its gain or about the reason why none was written. Raises
    ConfigError."""
    lines = [
        f"Together, {measure}, over {name}: {worth.before:,.0f} -> {worth.after:,.0f} images/s, {worth}"
        for name, worths in gains.items()
        for measure, worth in zip(MEASURES.values(), worths.values(), strict=True)
    ]
    if reason := _no_gain(gains):
        return [*lines, f"No experiment was written: {reason}."]
    if off := [word for word in words if word in study.plan.file.lasting]:
        lines.append(f"Switched off as harmful: {' '.join(off)}")
    request, where = study.request, cache.machine
    header = [
        f"{now()}, {host()}, {where['gpu'] or where['cpu']}, {where['cpus']} CPUs, torch {machine.versions()['torch']}",
        request.command,
        f"{request.title}: {TOGETHER} against {' and '.join(gains)}, in {num_rounds} rounds",
        *lines,
        *map(_line, winners),
    ]
    file = write_tuned("study", words, header)
    return [*lines, f"{how_to_train(file, request.overrides)}."]


def _no_gain(gains: Gains) -> str | None:
    """The reason why all steps together are not worth an experiment; None if they are."""
    if not gains[START].is_gain:
        return "together the steps are not faster for sure than the start"
    both = gains.get(NOW, Worths()).verdicts
    if "slower" in both:
        return f"together the steps are slower than {NOW}"
    if UNDECIDED in both and "faster" not in both:
        return f"whether the steps are faster than {NOW} is {UNDECIDED}"
    if both == {"no difference"}:
        return f"no difference from {NOW}: your configuration already has all useful steps"
    return None


def _line(winner: RowResult) -> str:
    """Describe the gain of a kept step in one line."""
    worth = ", ".join(f"{name} {winner.worth[measure]}" for measure, name in MEASURES.items())
    return f"{winner.row.name}: {worth}, loss {winner.parity} ({' against '.join(winner.row.pair or ())})"
