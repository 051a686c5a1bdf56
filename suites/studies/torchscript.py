"""The speed of scripted and traced networks beside eager and compiled ones.

python -m suites.studies.torchscript data.batch_size=64
"""

import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from imagenet_opt.display.table import Column
from imagenet_opt.errors import first_line
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.study.comparison import ComparedSetting, Comparison
from suites.studies.command import arguments, measured, show
from suites.studies.synthetic_step import SyntheticStep

EAGER = "eager"
_WARMUP = 5
"""Passes: TorchScript's executor profiles the first passes and then compiles for their shapes."""
WAYS: dict[str, Callable[[Any, Tensor], Any]] = {
    EAGER: lambda net, images: net,
    # the check of a trace would compare random numbers and batch statistics
    "torch.jit.trace": lambda net, images: torch.jit.trace(net, images, check_trace=False),
    "torch.jit.script": lambda net, images: torch.jit.script(net),
    "torch.compile": lambda net, images: torch.compile(net),
}


class Found(NamedTuple):
    """images_per_second: of forward and backward passes. ready_seconds: time to create the form of the network and run
    its first passes."""

    images_per_second: float
    ready_seconds: float
    first_loss: float


def found(subject: SyntheticStep, way: str, seconds: float) -> Found:
    """Measure a form of a new network; all forms and rounds have the same weights and batch. Raises TurnFailed if torch
    refuses the form."""
    try:
        return _found(subject, way, seconds)
    except Exception as error:  # TorchScript and the compilers have many classes of errors
        raise TurnFailed(first_line(error)) from error


def _found(subject: SyntheticStep, way: str, seconds: float) -> Found:
    torch.compiler.reset()
    torch.manual_seed(0)
    net, (images, labels) = subject.net(), subject.batch()
    subject.loss(net, images, labels).backward()  # the first use of the device by the process does not count
    subject.settle()
    torch.manual_seed(0)
    began = time.perf_counter()
    with subject.autocast(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript deprecated
        form = WAYS[way](net, images)

    def step() -> Tensor:
        net.zero_grad(set_to_none=True)
        loss = subject.loss(form, images, labels)
        loss.backward()
        return loss.detach()

    losses = [float(step()) for _ in range(_WARMUP)]
    subject.settle()
    ready_seconds = time.perf_counter() - began
    return Found(subject.num_images / subject.seconds(step, seconds), ready_seconds, losses[0])


def main() -> None:
    given = arguments(__doc__)
    subject = SyntheticStep(given.overrides)
    settings = {
        way: ComparedSetting((way,), partial(found, subject, way, given.seconds), None if way == EAGER else EAGER)
        for way in WAYS
    }
    comparison = Comparison(
        f"TorchScript beside torch.compile: {subject}",
        ("form of the network",),
        "images/s",
        settings,
        measured(settings, given.repeats),
        lambda found: found.images_per_second,
        more={
            Column("until it runs, s", "{:.1f}"): lambda turns: turns[0].ready_seconds,
            Column("again, s", "{:.1f}"): lambda turns: median(turn.ready_seconds for turn in turns[1:] or turns),
            Column("first loss", "{:.3f}"): lambda turns: turns[0].first_loss,
        },
    )
    show(
        comparison.table(
            "'Until it runs' is the time to build the form and to run its first five passes, eager's too; 'again' is "
            "the same time in later rounds, with torch.compile's cache on disk. Forms that compute the same have the "
            "same first loss."
        )
    )


if __name__ == "__main__":
    main()
