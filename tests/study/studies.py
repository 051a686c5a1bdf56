"""Small studies, and studies of steps whose processes return results at once."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from imagenet_opt.cli.study import tables_of
from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.config.overrides import key_of
from imagenet_opt.display.table import Table
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.study.file import Request, read_study
from imagenet_opt.study.plan import Study, StudyPlan
from imagenet_opt.study.turn import StudyTurn

Words = tuple[str, ...]
TINY = ("data=demo", "model.name=resnet10t", "data.batch_size=4", "data.image_size=32", "trainer.precision=32-true")
TINY += ("logger=csv",)
"""A network and a batch that a CPU computes at once."""


def small_request(
    name: str, folder: Path, *overrides: str, seconds: float = 0.1, repeats: int = 2, **options: Any
) -> Request:
    """The shipped study of that name with these `options` in the place of its own."""
    file = read_study(name)
    return Request(
        name=name,
        file=type(file).model_validate(file.model_dump() | options),
        overrides=overrides,
        repeats=repeats,
        seconds=seconds,
        parity_steps=0,
        folder=folder,
    )


def table_of(name: str, folder: Path, *overrides: str, **options: Any) -> Table:
    """The table of a study of one question; arguments as for `small_request`."""
    (table,) = tables_of(small_request(name, folder, *overrides, **options))
    return table


@dataclass
class Processes:
    """Replaces `call_isolated`.

    times: by override, the factor of its speed. curve: losses with these overrides. fails: whether a turn or a training
    with these overrides fails, by its number from 1. jobs: turns and trainings.
    """

    times: dict[str, float] = field(default_factory=dict)
    curve: Callable[[Words], list[float]] = lambda words: [1.0]
    fails: Callable[[Words, int], bool] = lambda words, number: False
    jobs: list[Any] = field(default_factory=list)

    def call(self, function: str, job: Any, *, limit_seconds: float, environment: dict[str, str]) -> Any:
        words = job.overrides
        self.jobs.append(job)
        if self.fails(words, len(self.jobs)):
            raise TurnFailed("out of memory")
        return asdict(self.turn(words)) if function.endswith(".measured") else self.curve(words)

    def turn(self, words: Words) -> StudyTurn:
        """Only the overrides decide, so intervals have no width."""
        rate, last = 1000.0, {key_of(word): word for word in words}
        for word, times in self.times.items():
            rate *= times if word in last.values() else 1.0
        return StudyTurn(rate / 2, rate, busy=0.5, memory_gib=2.0, compile_seconds=None, batch_size=4)


def steps_study(folder: Path, steps: list[dict[str, Any]], *words: str, start: Any = (), **fields: Any) -> Study:
    """A ladder before its measurements. words: overrides. fields: of the Request."""
    options: dict[str, Any] = {
        "order": "cumulative",
        "start": start if start == "plain" else list(start),
        "steps": steps,
    }
    request = replace(small_request("ladder", folder, *TINY, *words, **options), **fields)
    plan = StudyPlan(request.file, request.overrides, batch_size=4, has_gpu=True, mixed="bf16-mixed")
    return Study(plan, request, plan.rows(), cold=False)


def cache_of(study: Study) -> ResultCache:
    return ResultCache(study.request.folder, [study.plan.words(step) for step in study.plan.file.steps])
