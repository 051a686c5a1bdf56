"""Studies of steps whose processes return results at once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imagenet_opt.study.result_cache import ResultCache
from imagenet_opt.study.steps.plan import Plan, StepsFile, Study, key_of
from imagenet_opt.study.steps.speeds import measure_speeds
from imagenet_opt.study.steps.turn import Speed, Speeds

from imagenet_opt.measure.stats.rounds import TurnFailed
from tests.study.studies import TINY, small_request

Words = tuple[str, ...]


@dataclass
class Processes:
    """Replaces `call_isolated`.

    times: by override, the factor of its speed. change: changes the speed of a full run; change_alone: of the network
    alone. curve: losses with these overrides. fails: whether a full run or a training with these overrides fails, by
    its number from 1. fails_alone: whether the network alone fails. jobs: full runs and trainings. alone_jobs: others.
    """

    times: dict[str, float] = field(default_factory=dict)
    change: Callable[[Words, Speed], Speed] = lambda words, speed: speed
    change_alone: Callable[[Words, Speed], Speed] = lambda words, speed: speed
    curve: Callable[[Words], list[float]] = lambda words: [1.0]
    fails: Callable[[Words, int], bool] = lambda words, number: False
    fails_alone: Callable[[Words], bool] = lambda words: False
    jobs: list[Any] = field(default_factory=list)
    alone_jobs: list[Any] = field(default_factory=list)

    def call(self, function: str, job: Any, *, limit_seconds: float, environment: dict[str, str]) -> Any:
        words = job.overrides
        if function.endswith(".alone"):
            self.alone_jobs.append(job)
            if self.fails_alone(words):
                raise TurnFailed("out of memory")
            return self.change_alone(words, self.alone(words))
        self.jobs.append(job)
        if self.fails(words, len(self.jobs)):
            raise TurnFailed("out of memory")
        return self.change(words, self.full(words)) if function.endswith(".full") else self.curve(words)

    def rate(self, words: Words) -> float:
        """Only the overrides decide, so intervals have no width."""
        rate, last = 1000.0, {key_of(word): word for word in words}
        for word, times in self.times.items():
            rate *= times if word in last.values() else 1.0
        return rate

    def speed(self, words: Words) -> Speed:
        """All results of a round."""
        return self.full(words) | self.alone(words)

    def alone(self, words: Words) -> Speed:
        return {"compute": self.rate(words), "step_seconds": 4 / self.rate(words), "kernel_seconds": None}

    def full(self, words: Words) -> Speed:
        facts: Speed = {"busy": 0.5, "memory_gib": 2.0, "compile_seconds": None, "batch_size": 4.0}
        return facts | {"full": self.rate(words) / 2}


def steps_study(folder: Path, steps: list[dict[str, Any]], *words: str, start: Any = (), **fields: Any) -> Study:
    """A ladder before its measurements. words: overrides. fields: of the Request."""
    options = {"order": "cumulative", "start": start if start == "plain" else list(start), "steps": steps}
    request = replace(small_request("ladder", folder, *TINY, *words), options=options, **fields)
    file = StepsFile.model_validate(options)
    plan = Plan(file, request.overrides, batch_size=4, has_gpu=True, mixed="bf16-mixed")
    return Study(plan, request, plan.rows(), cold=False)


def measured(study: Study, report: Callable[[str], None] = lambda label: None) -> Speeds:
    cache = ResultCache(study.request.folder)
    cache.report = report
    return measure_speeds(study, cache)
