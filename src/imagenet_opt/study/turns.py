"""Runs the turns of a study: a failed turn does not stop the others, and stored results are reused."""

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
from imagenet_opt.errors import ConfigError, ImagenetOptError, first_line
from imagenet_opt.measure.stats.rounds import Rounds, TurnFailed, interleave
from imagenet_opt.study.request import Request
from imagenet_opt.study.result_cache import ResultCache

T = TypeVar("T")


@dataclass(frozen=True)
class TurnJob:
    """What a turn measures. This and the number of the turn identify its stored result."""

    kind: str
    name: str
    options: dict[str, Any]
    overrides: tuple[str, ...]
    seconds: float


class CachedTurns(Generic[T]):
    """Runs turns, or returns their stored results if the same study was stopped before.

    answer: type of a turn's result, convertible to JSON. subject: describes, in plain values, what is measured; None
    for the whole configuration. Results for another subject or other options are not reused.
    """

    def __init__(self, request: Request, answer: type[T], subject: object = None) -> None:
        self._request, self.cache, self._answer = request, ResultCache(request.folder), TypeAdapter(answer)
        self._subject = OmegaConf.to_container(composed(request.overrides)) if subject is None else subject
        self._numbers: Counter[str] = Counter()
        self.cache.set_subject({"job": asdict(self._job("")), "config": self._subject})

    def take(self, name: str, turn: Callable[[], T], label: str = "") -> T:
        """Run the next turn with this name. label: announces the turn, with its round.

        Raises TurnFailed; before any result exists, the original ImagenetOptError.
        """
        number = self._numbers[name]
        label = label and f"round {number + 1} of {self._request.num_rounds}: {label}"
        measure = partial(self._measured, turn)
        answer = self.cache.take(self._job(name), number, measure, config=self._subject, label=label)
        self._numbers[name] += 1
        return self._answer.validate_python(answer)

    def _job(self, name: str) -> TurnJob:
        request = self._request
        return TurnJob(request.kind, name, request.options, request.overrides, request.seconds)

    def _measured(self, turn: Callable[[], T]) -> Any:
        """Run the turn and return its result as JSON values."""
        try:
            return self._answer.dump_python(turn(), mode="json")
        except ImagenetOptError as error:
            if not self._numbers:
                raise
            raise TurnFailed(str(error)) from error


def run_rounds(
    turns: Mapping[str, Callable[[], T]],
    request: Request,
    answer: type[T],
    *,
    subject: object = None,
    label: str = "{}",
) -> Rounds[T]:
    """Run all turns in rounds and announce each new measurement with its round and its name in `label`.

    answer, subject: see CachedTurns. Raises ImagenetOptError if a turn raises it before anything was measured, since
    the request itself is then wrong. Later such a turn counts as failed and the others continue. Raises ConfigError if
    all have failed.
    """
    cached = CachedTurns(request, answer, subject)
    num_missing = request.num_rounds * len(turns) - cached.cache.report_resumed()
    with cached.cache.report_if_stopped(), announced(num_missing) as cached.cache.report:
        labelled = {name: partial(cached.take, name, turn, label.format(name)) for name, turn in turns.items()}
        rounds = interleave(labelled, repeats=request.num_rounds)
    if len(rounds.failures) == len(turns):
        raise ConfigError(f"study={request.name}: {rounds.reasons[0]}")
    return rounds


@contextmanager
def what_torch_refuses() -> Iterator[None]:
    """Turn torch's errors (out of memory, unsupported operations) into TurnFailed with torch's reason."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TurnFailed("the GPU's memory does not hold it") from error
    except RuntimeError as error:
        raise TurnFailed(first_line(error)) from error
