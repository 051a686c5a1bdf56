"""Measures all useful steps of a study together and writes them as an experiment."""

from collections.abc import Sequence

from imagenet_opt import machine
from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.config.experiment_file import host, how_to_train, write_tuned
from imagenet_opt.display.progress import say
from imagenet_opt.display.table import Column, Table
from imagenet_opt.display.terminal_table import now
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.verdict import UNDECIDED
from imagenet_opt.study.file import PLAIN
from imagenet_opt.study.losses import Parities
from imagenet_opt.study.plan import Study, StudyRow
from imagenet_opt.study.turn import RowResult, StudyTurn, Worths, stored_turn, worths_of

START, NOW, TOGETHER = "the start", "how you train now", "all useful steps"


def keep_winners(study: Study, results: Sequence[RowResult], parities: Parities, cache: ResultCache) -> Table:
    """Decide which steps to keep, and write them as an experiment if they pass the test together.

    A step is kept if it is faster in one measure, slower in none, and trains with the same loss. All kept steps
    together must be faster than the start and than the user's present configuration; then
    conf/experiment/tuned_<host>_study.yaml is written. Returns the table of decisions.
    """
    reasons = choose(results, parities)
    answers = {None: "yes", UNDECIDED: UNDECIDED}
    rows = tuple((name, answers.get(reason, f"no: {reason}")) for name, reason in reasons.items())
    lines = ["No step was certainly useful; no experiment was written."]
    if winners := [result.row for result in results if reasons.get(result.row.name, "no step") is None]:
        about = [
            f"{row.name}: {result.worth}, loss {parities[row.name]} (beside {row.base})"
            for result in results
            if (row := result.row) in winners
        ]
        words = [word for row in winners for word in row.own]
        try:
            lines = _written(study, words, about, cache, measure_together(study, words, cache))
        except ConfigError as error:
            lines = [f"No experiment was written: {error}."]
    return Table("Worth keeping", (Column("step"), Column("worth keeping")), rows, tuple(lines))


def choose(results: Sequence[RowResult], parities: Parities) -> dict[str, str | None]:
    """For each step the reason why it is not kept, or None if it is kept. Of steps that replace each other, the one
    whose interval has the largest low end is kept."""
    reasons = {result.row.name: _why_not(result, parities) for result in results if result.row.step}
    good: dict[str, list[RowResult]] = {}  # by the step that they replace
    for result in results:
        if (step := result.row.step) and reasons[step.name] is None:
            good.setdefault(step.instead_of or step.name, []).append(result)
    for rivals in good.values():
        kept = max(rivals, key=lambda result: max(worth.ratio.low for worth in result.worth.values()))
        sentence = f"{kept.row.name} is kept instead"
        reasons |= {result.row.name: sentence for result in rivals if result is not kept}
    return reasons


def _why_not(result: RowResult, parities: Parities) -> str | None:
    """The reason why a step is not worth keeping by itself; None if it is."""
    if result.failure is not None:
        return "failed"
    if not result.worth.is_gain:
        both = result.worth.verdicts
        return UNDECIDED if UNDECIDED in both and "slower" not in both else ", ".join(sorted(both))
    parity = parities.get(result.row.name, "--parity 0")
    if isinstance(parity, str):
        return f"its loss was not compared ({parity})"
    return None if parity.agrees else f"another loss ({parity})"


def measure_together(study: Study, words: list[str], cache: ResultCache) -> dict[str, Worths]:
    """Gain of these overrides over the start and over the user's present configuration, by its name, in rounds of their
    own; without the latter if it equals the start. Raises ConfigError if one of the configurations fails."""
    start = PLAIN if study.plan.file.start == "plain" else study.plan.file.below  # with the user's mixing
    own_by_name = {START: start, NOW: (), TOGETHER: tuple(words)}
    rows = {name: StudyRow(name, None, own, (*study.request.overrides, *own)) for name, own in own_by_name.items()}
    if rows[START].config == rows[NOW].config:
        del rows[NOW]
    num_rounds = study.request.num_rounds
    say(f"the kept steps together are compared with {START} and with {NOW}: {num_rounds} rounds")

    def turn(name: str, number: int) -> StudyTurn:
        return stored_turn(rows[name], number, study, cache, f"together, round {number + 1} of {num_rounds}: {name}")

    def stop(name: str, number: int, reason: str) -> None:
        raise ConfigError(f"{name}: {reason}")

    rounds = Rounds[StudyTurn]({name: [] for name in rows})
    rounds.run(turn, range(num_rounds), stop)
    worths = worths_of(rounds.results, [(TOGETHER, name) for name in rows if name != TOGETHER])
    return {base: worth for (_, base), worth in worths.items()}


def _written(
    study: Study, words: list[str], about: list[str], cache: ResultCache, gains: dict[str, Worths]
) -> list[str]:
    """Write the experiment, and return lines about its gain or about the reason why none was written. about: lines on
    each step. Raises ConfigError."""
    lines = [f"Together, over {name}: {worths}" for name, worths in gains.items()]
    if no_gain := [name for name, worths in gains.items() if not worths.is_gain]:
        return [*lines, f"No experiment was written: together the steps are not faster for sure than {no_gain[0]}."]
    request, where = study.request, cache.machine
    header = [
        f"{now()}, {host()}, {where['gpu'] or where['cpu']}, {where['cpus']} CPUs, torch {machine.versions()['torch']}",
        request.command,
        f"{request.file.title}: {TOGETHER} against {' and '.join(gains)}, in {request.num_rounds} rounds",
        *lines,
        *about,
    ]
    file = write_tuned("study", words, header)
    return [*lines, f"{how_to_train(file, request.overrides)}."]
