"""A training step on one batch: uncompiled, profiled, and compiled as configured."""

from dataclasses import dataclass

import torch

from imagenet_opt.data.index.index_cache import cache_folder
from imagenet_opt.display.progress import print_once
from imagenet_opt.errors import named_first_line
from imagenet_opt.model.stored_code import use_private_cache
from imagenet_opt.probe.device_peak import seconds_per_call
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep

_WARMUP_STEPS = 2
"""The first step compiles; in modes with CUDA graphs the second step records them."""


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
    """Compile the step for all later calls and time it; None if the configuration does not compile."""
    if (options := step.subject.compile) is None:
        return None
    use_private_cache(cache_folder(None) / "compiled", print_once)
    try:
        step.net.compile(**options)
        for _ in range(_WARMUP_STEPS):
            step()
        return Compiled(options["mode"], seconds_per_call(step, seconds=seconds, settle=step.subject.settle))
    except Exception as error:  # Dynamo, Inductor, the C++ compiler, memory: keep what was measured without compiling
        return Compiled(options["mode"], failure=named_first_line(error))


def profiled(step: TrainingStep, num_steps: int) -> torch.profiler.profile:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if step.subject.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profile = torch.profiler.profile(activities=activities)
    with profile:
        for _ in range(num_steps):
            step()
        step.subject.settle()
    return profile
