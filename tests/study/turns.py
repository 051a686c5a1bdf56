"""Studies of steps whose processes return results at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from imagenet_opt.doctor.environment.neighbours import Occupancy
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.study.result_cache import ResultCache
from imagenet_opt.study.steps.plan import Plan, StepsFile, Study, key_of
from imagenet_opt.study.steps.speeds import measure_speeds
from imagenet_opt.study.steps.turn import Speed, Speeds
from imagenet_opt.study.steps.worker import AloneJob
from tests.study.studies import TINY, small_request

Words = tuple[str, ...]


@dataclass
class FakeTurns:
    """Replaces InTurns: gives `first`, then always `report`, and at the end `answer`."""

    first: Any
    report: Any
    answer: Any

    def turn(self) -> Any:
        now, self.first = self.first or self.report, None
        return now

    def end(self) -> Any:
        return dict(self.answer)


@dataclass
class Processes:
    """Replaces `call_isolated`, `in_turns` and `Neighbours`.

    times: by override, the factor of its speed. change: changes the speed of a full run; change_alone: of the network
    alone. curve: losses with these overrides. fails: whether a full run or a training with these overrides fails, by
    its number from 1. fails_beside: whether a full run fails while others run. lacks_memory: whether memory limits its
    loader. fails_alone: whether a row of the network alone fails in a process with this number of rows. ends_early:
    whether a full run ends before its first window. others: percent of the CPUs that other programs use in a cycle.
    jobs: full runs and trainings. sessions: processes of the network alone. num_running: full runs now.
    groups: numbers of full runs that ran together.
    """

    times: dict[str, float] = field(default_factory=dict)
    change: Callable[[Words, Speed], Speed] = lambda words, speed: speed
    change_alone: Callable[[Words, Speed], Speed] = lambda words, speed: speed
    curve: Callable[[Words], list[float]] = lambda words: [1.0]
    fails: Callable[[Words, int], bool] = lambda words, number: False
    fails_beside: Callable[[Words, int], bool] = lambda words, number: False
    lacks_memory: Callable[[Words], bool] = lambda words: False
    fails_alone: Callable[[Words, int], bool] = lambda words, num_rows: False
    ends_early: Callable[[Words], bool] = lambda words: False
    others: Callable[[], float] = lambda: 0.0
    jobs: list[Any] = field(default_factory=list)
    sessions: list[AloneJob] = field(default_factory=list)
    num_running: int = 0
    groups: list[int] = field(default_factory=list)

    def call(self, function: str, job: Any, *, limit_seconds: float, environment: dict[str, str]) -> Any:
        self._begin(job)
        return self.curve(job.overrides)

    @contextmanager
    def in_turns(
        self, function: str, job: Any, *, stops: bool, limit_seconds: float, environment: dict[str, str]
    ) -> Iterator["FakeTurns"]:
        if isinstance(job, AloneJob):
            yield self._session(job)
            return
        self._begin(job)
        self.groups += [] if self.num_running else [0]
        self.num_running += 1
        try:
            if self.num_running > 1 and self.fails_beside(job.overrides, self.num_running):
                raise TurnFailed("out of memory beside others")
            facts = self.change(job.overrides, self.full(job.overrides))
            rate = facts.pop("full") or 0.0
            facts["device_seconds"] = (facts.pop("busy") or 0.0) * (facts["batch_size"] or 0.0) / rate
            report = {"window": (rate, 1.0), "is_enough": True, "clocks_lowered": False}
            first = {"window": None, "batches_per_round": 1, "lacks_memory": self.lacks_memory(job.overrides)}
            self.groups[-1] += 1
            yield FakeTurns(first, None if self.ends_early(job.overrides) else report, facts)
        finally:
            self.num_running -= 1

    def _begin(self, job: Any) -> None:
        self.jobs.append(job)
        if self.fails(job.overrides, len(self.jobs)):
            raise TurnFailed("out of memory")

    def _session(self, job: AloneJob) -> "FakeTurns":
        self.sessions.append(job)
        failures = {name: "out of memory" for name, words in job.rows if self.fails_alone(words, len(job.rows))}
        speeds = {name: self.change_alone(words, self.alone(words)) for name, words in job.rows if name not in failures}
        sizes = {name: (speed["step_seconds"] or 0.0) * (speed["compute"] or 0.0) for name, speed in speeds.items()}
        kernels = {name: speed["kernel_seconds"] for name, speed in speeds.items()}
        windows = {name: (speed["compute"], 1.0) for name, speed in speeds.items()}
        report = {"windows": windows, "clocks_lowered": False} if windows else None
        answer = {"failures": failures, "batch_sizes": sizes, "kernels": kernels}
        return FakeTurns({"windows": None}, report, answer)

    def start(self) -> None:
        """Of Neighbours."""

    def stop(self) -> Occupancy:
        """Of Neighbours."""
        return Occupancy(1.0, self.others(), 0.0, 0.0, ())

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
