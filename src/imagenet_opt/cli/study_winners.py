"""The steps of a study that were worth it, as an experiment to train with."""

from imagenet_opt.cli.study_plan import Row
from imagenet_opt.cli.study_sheet import MEASURES, ratios_of, said
from imagenet_opt.cli.study_steps import Outcome
from imagenet_opt.cli.tuned import how_to_train, write_tuned
from imagenet_opt.measure.parity import Parity
from imagenet_opt.measure.sheet import Column, Sheet
from imagenet_opt.measure.statistics import verdict


def write_winners(outcome: Outcome) -> Sheet:
    """conf/experiment/tuned_<host>_study.yaml with the steps that were faster in one measure and slower in none."""
    verdicts = {row.name: why(outcome, row) for row in outcome.plan.rows if row.step is not None}
    winners = [row for row in outcome.plan.rows if row.step is not None and verdicts[row.name] is None]
    rows = tuple((name, "kept" if reason is None else reason) for name, reason in verdicts.items())
    columns = (Column("step"), Column("in the experiment"))
    if not winners:
        return Sheet("Worth keeping", columns, rows, ("Nothing was worth it for sure; no experiment was written.",))
    words = [word for row in winners if row.step for word in outcome.plan.words(row.step)]
    compute = ratios_of(outcome, "compute")
    header = [f"{row.name}: {said(compute[row.name])} (network alone)" for row in winners]
    file = write_tuned("study", [*outcome.plan.file.below, *words], [outcome.request.title, *header])
    return Sheet("Worth keeping", columns, rows, (how_to_train(file, outcome.plan.overrides),))


def why(outcome: Outcome, row: Row) -> str | None:
    """Why a step is not kept; None for one that is."""
    if row.name in outcome.failures:
        return "failed"
    verdicts = {verdict(ratios_of(outcome, measure)[row.name]) for measure in MEASURES}
    if "slower" in verdicts or "faster" not in verdicts:
        return ", ".join(sorted(verdicts))
    found = outcome.parities.get(row.name)
    if isinstance(found, Parity) and not found.agrees:
        return f"another loss ({found})"
    return None
