"""The turns of a study: a turn that fails ends no other, and no turn is measured twice."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter

from imagenet_opt.config.compose import composed
from imagenet_opt.display.progress import announced
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.measure.stats.rounds import Rounds, TurnFailed, interleave
from imagenet_opt.study.request import Request
from imagenet_opt.study.result_cache import ResultCache

T = TypeVar("T")


@dataclass(frozen=True)
class TurnJob:
    """What identifies a turn, beside its number: its name, and the whole request for the study."""

    kind: str
    name: str
    options: dict[str, Any]
    overrides: tuple[str, ...]
    seconds: float


class KeptTurns(Generic[T]):
    """Takes turns, or gives the results that they had before the same study was stopped.

    answer: type of what a turn gives, of which JSON can be made. subject: what is measured, in plain values; None for
    the whole configuration. Of another one, or with other options, all is measured again.
    """

    def __init__(self, request: Request, answer: type[T], subject: object = None) -> None:
        self._request, self.cache, self._answer = request, ResultCache(request.folder), TypeAdapter(answer)
        self._subject = OmegaConf.to_container(composed(request.overrides)) if subject is None else subject
        self._numbers: Counter[str] = Counter()
        self.cache.set_subject({"job": asdict(self._job("")), "config": self._subject})

    def take(self, name: str, turn: Callable[[], T]) -> T:
        """The next one of that name. Raises TurnFailed; the first turn of all what it raises itself."""
        measure = partial(self._measured, turn)
        answer = self.cache.take(self._job(name), self._numbers[name], measure, config=self._subject)
        self._numbers[name] += 1
        return self._answer.validate_python(answer)

    def _job(self, name: str) -> TurnJob:
        request = self._request
        return TurnJob(request.kind, name, request.options, request.overrides, request.seconds)

    def _measured(self, turn: Callable[[], T]) -> Any:
        """As JSON has it."""
        try:
            return self._answer.dump_python(turn(), mode="json")
        except ImagenetOptError as error:
            if not self._numbers:
                raise
            raise TurnFailed(str(error)) from error


def rounds_of(
    turns: Mapping[str, Callable[[], T]],
    request: Request,
    answer: type[T],
    *,
    subject: object = None,
    label: str = "{}",
) -> Rounds[T]:
    """All in turns; those that are measured now are announced with their round and by their name in this `label`.

    answer, subject: of KeptTurns.

    Raises ImagenetOptError where a turn raises one before anything was measured: it is what the user asked for that
    cannot be. Later such a turn has failed, and the others continue; ConfigError where all have.
    """
    resumed = KeptTurns(request, answer, subject)
    num_missing = request.num_rounds * len(turns) - resumed.cache.report_resumed()
    with resumed.cache.report_if_stopped(), announced(num_missing) as report:
        report = resumed.cache.only_new(report)
        rounds = interleave(
            {name: partial(resumed.take, name, turn) for name, turn in turns.items()},
            repeats=request.num_rounds,
            before_turn=lambda number, name, done: report(
                f"round {number + 1} of {request.num_rounds}: {label.format(name)}"
            ),
        )
    if len(rounds.failures) == len(turns):
        raise ConfigError(f"study={request.name}: {rounds.reasons[0]}")
    return rounds


@contextmanager
def what_torch_refuses() -> Iterator[None]:
    """Memory that runs out, and what a device or a type cannot do, fails the turn with torch's reason."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TurnFailed("the GPU's memory does not hold it") from error
    except RuntimeError as error:
        raise TurnFailed(str(error).strip().partition("\n")[0] or type(error).__name__) from error
