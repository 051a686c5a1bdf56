"""Runs a study of steps: measures the gain of each override and whether it changes the loss."""

from statistics import fmean

from imagenet_opt import machine
from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.compare.turn import SEED
from imagenet_opt.config.build import precision_of
from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import check_writable_experiments, unwritable
from imagenet_opt.display.progress import announced, say
from imagenet_opt.display.table import Table
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.storage.page_cache import MOSTLY
from imagenet_opt.object_storage import is_url
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.apply import keep_winners
from imagenet_opt.study.compare import compare
from imagenet_opt.study.losses import Losses, measure_losses
from imagenet_opt.study.plan import Plan, StepsFile, Study, check_rows
from imagenet_opt.study.request import Request, checked_options, mistakes_in_file
from imagenet_opt.study.speeds import key_of_turn, measure_speeds
from imagenet_opt.study.table import tables

_MOST_OF_MEMORY = 0.5
"""Share of the available memory that is surely left for the page cache."""
_WARMING_SECONDS = 60.0
"""Longest time to read the files of the turns into memory."""


def run(request: Request) -> list[Table]:
    """Measure the speed of all rows, then their losses, and return the tables. Raises ImagenetOptError."""
    study, cache = begin(request)
    cache.report_resumed()
    turns = (key_of_turn(row, number) for row in study.rows for number in range(request.repeats or 0))
    num_missing = cache.num_missing(turns)
    with cache.report_if_stopped():
        with announced(num_missing or None, budget_seconds=request.budget_seconds) as cache.report:
            rows, rounds = measure_speeds(study, cache)
        with announced(None) as cache.report:
            losses = measure_losses(study, rows, rounds.results, cache) if request.parity_steps else Losses()
            results = compare(rows, rounds, losses)
            shown = tables(study, results)
            return [*shown, keep_winners(study, results, cache)] if request.apply else shown


def begin(request: Request) -> tuple[Study, ResultCache]:
    """Check the study, prepare its rows and describe it on stderr; nothing is trained yet. Raises ConfigError."""
    file = checked_options(StepsFile, request)
    if request.apply:
        check_writable_experiments()
        for word in (*file.lasting, *(word for step in file.steps for word in step.overrides)):
            if reason := unwritable(word):
                raise ConfigError(f"--apply: {word} {reason}; leave --apply out, or use KEY=VALUE in the study's file")
    with mistakes_in_file(request):
        config = composed((*request.overrides, *file.below))
    testbed = Testbed(config)
    if testbed.simulated is not None:
        raise ConfigError("a study measures the network itself, which a rehearsal does not run; leave rehearse= out")
    with mistakes_in_file(request):
        mixed = precision_of("mixed", testbed.device)
        has_gpu, batch_size = testbed.device.type == "cuda", testbed.loading.batch_size
        plan = Plan(file, request.overrides, batch_size=batch_size, has_gpu=has_gpu, mixed=mixed)
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


def _fits_into_memory(testbed: Testbed) -> bool:
    """Whether all files fit into half of the free memory: then a run reads them from memory after its first epoch."""
    samples = testbed.samples
    if is_url(testbed.config.data.get("root")):
        return False
    samples.read_few()
    num_bytes = fmean(map(len, samples.encoded)) * len(samples.index)
    return num_bytes <= _MOST_OF_MEMORY * machine.available_memory()
