"""Runs a study of steps: measures the gain of each override and whether it changes the loss, and builds the tables."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from omegaconf import OmegaConf

from imagenet_opt import machine
from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.compare.rounds import LEAST_ROUNDS
from imagenet_opt.config.build import check_config, precision_of
from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import check_writable_experiments, unwritable
from imagenet_opt.display.progress import as_budget, say
from imagenet_opt.display.table import RATIOS, Cell, Column, Plot, Series, Table
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure.stats.intervals import CONFIDENCE
from imagenet_opt.measure.stats.verdict import UNDECIDED
from imagenet_opt.measure.storage.page_cache import MOSTLY
from imagenet_opt.object_storage import is_url
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.apply import keep_winners
from imagenet_opt.study.file import Request, StepsFile
from imagenet_opt.study.losses import Parities, Parity, measure_losses
from imagenet_opt.study.plan import Study, StudyPlan, StudyRow
from imagenet_opt.study.turn import MEASURES, SEED, RowResult, Worths, key_of_turn, measure_speeds

_COLUMNS = (Column("step"), Column("images/s"), Column("ratio", "{:.2f} x"), Column("interval"), Column("verdict"))
_MOST_OF_MEMORY = 0.5
"""Share of the available memory that is surely left for the page cache."""
_WARMING_SECONDS = 60.0
"""Longest time to read the files of the turns into memory."""


def run(file: StepsFile, request: Request) -> list[Table]:
    """Measure the speed of all rows, then their losses, and return the tables. Raises ImagenetOptError."""
    try:
        study, cache = begin(file, request)
    except ConfigError as error:
        raise ConfigError(f"study={request.name}: {error}") from error
    cache.report_resumed()
    num_rounds = request.repeats or (0 if request.budget_seconds else LEAST_ROUNDS)
    num_missing = cache.num_missing(key_of_turn(row, number) for row in study.rows for number in range(num_rounds))
    with cache.measuring(num_missing or None, budget_seconds=request.budget_seconds):
        results = measure_speeds(study, cache)
    with cache.measuring():
        parities = measure_losses(study, results, cache) if request.parity_steps else {}
        shown = tables(study, results, parities)
        return [*shown, keep_winners(study, results, parities, cache)] if request.apply else shown


def begin(file: StepsFile, request: Request) -> tuple[Study, ResultCache]:
    """Check the study, prepare its rows and describe it on stderr; nothing is trained yet. Raises ConfigError."""
    if request.apply:
        check_writable_experiments()
        for word in (word for step in file.steps for word in step.overrides):
            if reason := unwritable(word):
                raise ConfigError(f"--apply: {word} {reason}; leave --apply out, or use KEY=VALUE in the study's file")
    config = composed((*request.overrides, *file.below))
    if config.callbacks.get("rehearsal") is not None:
        raise ConfigError("a study measures the network itself, which a rehearsal does not run; leave rehearse= out")
    testbed = Testbed(config)
    mixed = precision_of("mixed", testbed.device)
    has_gpu, batch_size = testbed.device.type == "cuda", testbed.loading.batch_size
    plan = StudyPlan(file, request.overrides, batch_size=batch_size, has_gpu=has_gpu, mixed=mixed)
    rows = plan.rows()
    check_rows(rows)
    steps = [plan.words(step) for step in file.steps]
    cache = ResultCache(request.folder, {"start": rows[0].config, "steps": steps, "seconds": request.seconds})
    is_in_memory = (testbed.samples.residency().share or 0.0) >= MOSTLY
    cold = cache.take("cold", lambda: not is_in_memory and not _fits_into_memory(testbed))
    if replaced := plan.replaced():
        say(f"study={request.name} replaces overrides of the command line: {', '.join(replaced)}")
    for line in (*plan.left_out(), f"{len(rows)} rows"):
        say(line)
    if not cold:
        say(f"reading the files of the study into memory, for about {_WARMING_SECONDS:.0f} s at most")
        Testbed(composed(rows[0].overrides), seed=SEED).samples.warm(_WARMING_SECONDS)
    return Study(plan, request, rows, cold=cold), cache


def check_rows(rows: Iterable[StudyRow]) -> None:
    """Check the keys and values of all rows without reading data. Raises ConfigError with the row's name."""
    for row in rows:
        name = f"step '{row.name}'" if row.step else row.name
        if row.step and not row.own:
            raise ConfigError(f"{name}: it changes nothing; give it overrides or batch_factor")
        try:
            check_config(OmegaConf.create(row.config))
        except ImagenetOptError as error:
            raise ConfigError(f"{name}: {error}") from error


def _fits_into_memory(testbed: Testbed) -> bool:
    """Whether all files fit into half of the free memory: then a run reads them from memory after its first epoch."""
    samples = testbed.samples
    if is_url(testbed.config.data.get("root")):
        return False
    samples.read_few()
    num_bytes = fmean(map(len, samples.encoded)) * len(samples.index)
    return num_bytes <= _MOST_OF_MEMORY * machine.available_memory()


def tables(study: Study, results: Sequence[RowResult], parities: Parities) -> list[Table]:
    """The tables of a study: ratios of each measure, and details."""
    ratios = [
        Table(
            f"{study.request.file.title}: {name}",
            _COLUMNS,
            tuple(_ratio_row(result, measure) for result in results),
            tuple(advice(results, study.request)) if measure == "full" else (),
            plots=(_ratio_plot(results, measure),),
            data=_numbers(study, results, parities) if measure == "compute" else {},
            finding=_finding(results, measure),
        )
        for measure, name in MEASURES.items()
    ]
    return [*ratios, _details(study, results, parities)]


def _finding(results: Sequence[RowResult], measure: str) -> str:
    """Which steps make the measure faster, the most useful first."""
    gains = [(result.worth[measure], result.row.name) for result in results if result.worth]
    faster = sorted(((gain.ratio.ratio, name) for gain, name in gains if gain.verdict == "faster"), reverse=True)
    if not faster:
        return f"No step is certain to make the {MEASURES[measure]} faster."
    return f"The {MEASURES[measure]} is faster with {', '.join(f'{name} ({ratio:.2f} x)' for ratio, name in faster)}."


def _ratio_row(result: RowResult, measure: str) -> tuple[Cell, ...]:
    if result.worth:
        return result.row.name, *result.worth[measure].cells
    speed = f"{median(result.rates(measure)):,.0f}" if result.turns else "failed"
    return result.row.name, speed, None, None, None


def advice(results: Sequence[RowResult], request: Request) -> list[str]:
    """How to decide all that is undecided, as a sentence; none if nothing is."""
    worths = [worth for result in results for each in (result.worth, result.together) for worth in each.values()]
    undecided = [worth for worth in worths if worth.verdict == UNDECIDED and worth.ratio.coverage]
    if not undecided:
        return []
    if request.repeats is not None:
        return [f"To decide all that is {UNDECIDED}, raise --repeats."]
    budget = as_budget(max(worth.more_seconds for worth in undecided))
    return [f"To decide all that is {UNDECIDED}, run the command again with --budget {budget}; it resumes."]


def _details(study: Study, results: Sequence[RowResult], parities: Parities) -> Table:
    columns = [Column("step"), Column("compared with"), Column("pipeline / alone", "{:.0%}")]
    columns += [Column("device busy", "{:.0%}"), Column("memory GiB", "{:.1f}"), Column("compile s", "{:.0f}")]
    columns += [Column("loss")] if study.request.parity_steps else []
    rows = []
    for result in results:
        if turns := result.turns:
            alone, full = (median(result.rates(measure)) for measure in MEASURES)
            compiling = [turn.compile_seconds for turn in turns if turn.compile_seconds is not None]
            cells: list[Cell] = [result.row.name, result.row.base, full / alone]
            cells += [
                median(turn.busy for turn in turns),
                max(turn.memory_gib for turn in turns),
                max(compiling, default=None),
            ]
            parity = parities.get(result.row.name)
            cells += [None if parity is None else str(parity)]
            rows.append(tuple(cells[: len(columns)]))
    num = sum(bool(worths) for result in results for worths in (result.worth, result.together))
    place = "storage" if study.cold else "memory, or from the local cache of a URL"
    notes = (
        f"The intervals of all {len(MEASURES) * num} comparisons, of {len(results[0].turns)} rounds, hold at once with "
        f"a probability of {CONFIDENCE:.0%}.",
        RATIOS,
        f"Full runs read files from {place}.",
        *(f"{result.row.name} failed {result.failure}." for result in results if result.failure is not None),
        *(f"All together against the start: {result.together}." for result in results if result.together),
    )
    title, left_out = f"{study.request.file.title}: details", tuple(study.plan.left_out())
    return Table(title, tuple(columns), tuple(rows), notes, left_out=left_out)


def _ratio_plot(results: Sequence[RowResult], measure: str) -> Plot:
    """The ratio of each step with its interval."""
    known = {result.row.name: result.worth[measure].ratio for result in results if result.worth}
    middle, low, high = (tuple(getattr(ratio, name) for ratio in known.values()) for name in ("ratio", "low", "high"))
    title = "Speed with the step / without it. Green: faster, red: slower, grey: no difference, hollow: undecided"
    return Plot(title, "ratio", "", "ratios", (Series(MEASURES[measure], tuple(known), middle, low, high),))


def _numbers(study: Study, results: Sequence[RowResult], parities: Parities) -> dict[str, Any]:
    """All measured numbers as JSON values. With too few rounds, low and high are not finite."""

    def gains(worths: Worths) -> dict[str, Any]:
        return {name: worth.ratio._asdict() | {"verdict": worth.verdict} for name, worth in worths.items()}

    def parity(name: str) -> Any:
        return asdict(found) if isinstance(found := parities.get(name), Parity) else found

    rows = [
        {
            "name": result.row.name,
            "overrides": list(result.row.own),
            "compared_with": result.row.base,
            "turns": list(map(asdict, result.turns)),
            "ratios": gains(result.worth),
            "all_together": gains(result.together),
            "parity": parity(result.row.name),
            "failure": result.failure,
        }
        for result in results
    ]
    return {"order": study.plan.file.order, "cold": study.cold, "left_out": study.plan.absent, "rows": rows}
