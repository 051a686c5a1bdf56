"""Sizes beside the nearest multiple, and the FLOPs of a layer."""

from pathlib import Path

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
from tests.study.studies import TINY, table_of

CPU = (*TINY, "trainer.accelerator=cpu")


def test_sizes_take_turns_and_a_size_too_large_for_the_memory_fails_alone(tmp_path: Path) -> None:
    """The failed multiple of 64 would be the nearest better size of 1000."""
    few = {"channels": [7, 8], "batches": [8, 9], "outputs": [1000, 1001, 64 * 10**12]}
    table = table_of("shapes", tmp_path, *CPU, seconds=0.001, repeats=1, **few)
    assert [row[:3] for row in table.rows] == [
        *((CHANNELS, "7", "1"), (CHANNELS, "8", "8")),
        *((BATCH, "8", "8"), (BATCH, "9", "1")),
        *((OUTPUTS, "1000", "8"), (OUTPUTS, "1001", "1"), (OUTPUTS, str(64 * 10**12), "64")),
    ]
    against = [row[5] for row in table.rows]
    assert against == [f"{CHANNELS} 8", None, None, f"{BATCH} 8", None, f"{OUTPUTS} 1000", None]
    assert table.notes[0].startswith(f"{OUTPUTS} {64 * 10**12}: ") and table.rows[-1][3] is None


@pytest.mark.parametrize(("varies", "size"), [(CHANNELS, 12), (BATCH, 5), (OUTPUTS, 7)])
def test_flops_are_those_that_torch_counts(varies: str, size: int) -> None:
    layer, shape = layer_of(SyntheticStep(CPU), varies, size)
    inputs = torch.ones(shape).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        layer(inputs).sum().backward()
    assert flops_of(layer, shape) == counter.get_total_flops()


def test_sizes_are_compared_with_the_nearest_better_multiple() -> None:
    sizes = (248, 252, 255, 256, 257, 260, 264)
    assert [multiple_of(size) for size in sizes] == [8, 1, 1, 64, 1, 1, 8]
    assert [neighbour(size, sizes) for size in sizes] == [256, 256, 256, None, 256, 264, 256]
    assert neighbour(7, (5, 7)) is None
