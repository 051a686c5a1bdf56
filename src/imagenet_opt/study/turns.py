"""Runs the turns of a study: a failed turn does not stop the others, and stored results are reused."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter

from imagenet_opt.compare.result_cache import ResultCache
from imagenet_opt.compare.rounds import Rounds, in_rounds
from imagenet_opt.config.compose import composed
from imagenet_opt.display.progress import announced
from imagenet_opt.errors import ConfigError, ImagenetOptError, first_line
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.study.request import Request

T = TypeVar("T")


def run_rounds(
    turns: Mapping[str, Callable[[], T]],
    request: Request,
    answer: type[T],
    *,
    subject: object = None,
    label: str = "{}",
) -> Rounds[T]:
    """Run all turns in rounds and announce each new measurement with its round and its name in `label`.

    answer: type of a turn's result, convertible to JSON. subject: describes, in plain values, what is measured; None
    for the whole configuration. Results for another subject or other options are not reused. Raises ImagenetOptError if
    a turn raises it before anything was measured, since the request itself is then wrong. Later such a turn counts as
    failed and the others continue. Raises ConfigError if all have failed.
    """
    cache, adapter, any_result = cache_of(request, subject), TypeAdapter(answer), False

    def measured(name: str) -> Any:
        try:
            return adapter.dump_python(turns[name](), mode="json")
        except ImagenetOptError as error:
            if not any_result:
                raise
            raise TurnFailed(str(error)) from error

    def turn(name: str, number: int) -> T:
        nonlocal any_result
        of_round = f"round {number + 1} of {request.num_rounds}: {label.format(name)}"
        values = cache.take({"turn": name, "round": number}, lambda: measured(name), of_round)
        any_result = True
        return adapter.validate_python(values)

    num_missing = request.num_rounds * len(turns) - cache.report_resumed()
    with cache.report_if_stopped(), announced(num_missing) as cache.report:
        rounds = in_rounds(turns, turn, range(request.num_rounds))
    if len(rounds.failures) == len(turns):
        raise ConfigError(f"study={request.name}: {rounds.reasons[0]}")
    return rounds


def cache_of(request: Request, subject: object = None) -> ResultCache:
    """Stored results of this study; see `run_rounds`."""
    subject = OmegaConf.to_container(composed(request.overrides)) if subject is None else subject
    asked = (request.kind, request.options, request.overrides, request.seconds)
    return ResultCache(request.folder, {"request": asked, "subject": subject})


@contextmanager
def what_torch_refuses() -> Iterator[None]:
    """Turn torch's errors (out of memory, unsupported operations) into TurnFailed with torch's reason."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TurnFailed("the GPU's memory does not hold it") from error
    except RuntimeError as error:
        raise TurnFailed(first_line(error)) from error
