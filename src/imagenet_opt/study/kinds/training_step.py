"""A training step on one batch: uncompiled, profiled, and compiled as configured."""

from dataclasses import dataclass

import torch

from imagenet_opt.probe.device_peak import seconds_per_call
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep

_UNTIL_STEADY = 2
"""Steps: the first one compiles; in modes with CUDA graphs of their own the second one records them."""


@dataclass(frozen=True)
class Compiled:
    """The compiled step. mode: of torch.compile. seconds: None if it cannot be compiled; `failure` has the reason."""

    mode: str
    seconds: float | None = None
    failure: str | None = None


class TrainingStep:
    """Forward, backward and update on a batch that stays on the device; uncompiled until `compiled` is called."""

    def __init__(self, subject: SyntheticStep) -> None:
        self.subject, self.net, self.batch = subject, subject.net(), subject.batch()
        self.optimizer = subject.build_optimizer(self.net)

    def forward_backward(self) -> None:
        self.subject.loss(self.net, *self.batch).backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def __call__(self) -> None:
        self.forward_backward()
        self.update()


def compiled(step: TrainingStep, *, seconds: float) -> Compiled | None:
    """The step as the configuration compiles it, from now on; None where it does not."""
    if (how := step.subject.compile) is None:
        return None
    try:
        step.net.compile(**how)
        for _ in range(_UNTIL_STEADY):
            step()
        return Compiled(how["mode"], seconds_per_call(step, seconds=seconds, settle=step.subject.settle))
    except Exception as error:  # of Dynamo, Inductor, the C++ compiler, or no memory: all else has been measured
        reason = next(iter(str(error).strip().splitlines()), "")
        return Compiled(how["mode"], failure=f"{type(error).__name__}: {reason}")


def profiled(step: TrainingStep, num_steps: int) -> torch.profiler.profile:
    kinds, subject = torch.profiler.ProfilerActivity, step.subject
    profile = torch.profiler.profile(activities=[kinds.CPU, *([kinds.CUDA] if subject.device.type == "cuda" else [])])
    with profile:
        for _ in range(num_steps):
            step()
        subject.settle()
    return profile
