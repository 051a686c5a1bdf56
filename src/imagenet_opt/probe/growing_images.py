"""Runs whose images grow: the device trains small images faster, so it needs a faster loader for them."""

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from torch import nn

from imagenet_opt.probe.model_flops import forward_flops


class SizePhase(NamedTuple):
    """Consecutive epochs with images of one size, in pixels.

    first_epoch: counted from 0. speed: images/s of the device relative to the run's largest size, by FLOPs.
    """

    first_epoch: int
    num_epochs: int
    image_size: int
    speed: float

    @property
    def epochs(self) -> str:
        """The epochs as text, counted from 1: "epochs 1 to 12"."""
        last = self.first_epoch + self.num_epochs
        return f"epoch {last}" if self.num_epochs == 1 else f"epochs {self.first_epoch + 1} to {last}"


def size_phases(net: nn.Module, sizes: Iterable[int]) -> tuple[SizePhase, ...]:
    """The phases of a run. net: on any device, also `meta`. sizes: pixels of the images in each epoch."""
    lengths = [(size, len(list(epochs))) for size, epochs in groupby(sizes)]
    flops = {size: forward_flops(net, size) for size in {size for size, _ in lengths}}
    most, phases, first = max(flops.values()), [], 0
    for size, num in lengths:
        phases.append(SizePhase(first, num, size, most / flops[size]))
        first += num
    return tuple(phases)
