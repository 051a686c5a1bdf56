"""Phases of a run whose images grow."""

import torch
from torch import nn

from imagenet_opt.probe.growing_images import SizePhase, size_phases


def test_a_convolution_takes_four_times_as_many_images_of_half_the_size() -> None:
    net = nn.Conv2d(3, 8, 3, padding=1, device=torch.device("meta"))
    phases = size_phases(net, [16, 16, 16, 32, 8])
    assert phases == (SizePhase(0, 3, 16, 4.0), SizePhase(3, 1, 32, 1.0), SizePhase(4, 1, 8, 16.0))
    assert [phase.epochs for phase in phases] == ["epochs 1 to 3", "epoch 4", "epoch 5"]
