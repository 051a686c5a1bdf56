"""Processes of a study that return results at once."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from imagenet_opt.config.overrides import key_of
from imagenet_opt.study import turn
from imagenet_opt.study.turn import StudyTurn
from tests.study.studies import Words


@dataclass
class Processes:
    """Replaces `call_isolated`. times: by override, the factor of its speed. curve: losses with these overrides. jobs:
    turns and trainings."""

    times: dict[str, float] = field(default_factory=dict)
    curve: Callable[[Words], list[float]] = lambda words: [1.0]
    jobs: list[Any] = field(default_factory=list)

    def call(self, function: str, job: Any, **_: Any) -> Any:
        self.jobs.append(job)
        return asdict(self.turn(job.overrides)) if function.endswith(".measured") else self.curve(job.overrides)

    def turn(self, words: Words) -> StudyTurn:
        """Only the overrides decide, so intervals have no width."""
        rate, last = 1000.0, {key_of(word): word for word in words}
        for word, times in self.times.items():
            rate *= times if word in last.values() else 1.0
        return StudyTurn(rate / 2, rate, busy=0.5, memory_gib=2.0, compile_seconds=None, batch_size=4)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    processes = Processes()
    monkeypatch.setattr(turn, "call_isolated", processes.call)
    return processes
