"""Sizes beside the nearest multiple, and the FLOPs of a layer."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from imagenet_opt.study.kinds.shapes import (
    BATCH,
    CHANNELS,
    OUTPUTS,
    flops_of,
    layer_of,
    multiple_of,
    neighbour,
)
from imagenet_opt.study.kinds.synthetic_step import SyntheticStep
from tests.study.studies import TINY


@pytest.mark.parametrize(("varies", "size"), [(CHANNELS, 12), (BATCH, 5), (OUTPUTS, 7)])
def test_flops_are_those_that_torch_counts(varies: str, size: int) -> None:
    layer, shape = layer_of(SyntheticStep((*TINY, "trainer.accelerator=cpu")), varies, size)
    inputs = torch.ones(shape).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        layer(inputs).sum().backward()
    assert flops_of(layer, shape) == counter.get_total_flops()


def test_sizes_are_compared_with_the_nearest_better_multiple() -> None:
    sizes = (248, 252, 255, 256, 257, 260, 264)
    assert [multiple_of(size) for size in sizes] == [8, 1, 1, 64, 1, 1, 8]
    assert [neighbour(size, sizes) for size in sizes] == [256, 256, 256, None, 256, 264, 256]
    assert neighbour(7, (5, 7)) is None
