from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import conv2d, linear
from torch.utils.flop_counter import FlopCounterMode

from imagenet_opt.errors import ConfigError
from imagenet_opt.study.kinds.shapes import (
    BATCH,
    CHANNELS,
    OUTPUTS,
    convolution,
    last_layer,
    multiple_of,
    neighbour,
    padded_share,
    run,
    table_of,
)
from imagenet_opt.study.kinds.synthetic_step import subject_of
from tests.study.studies import TINY, small_request

CPU = (*TINY, "trainer.accelerator=cpu")


def test_all_sizes_take_turns(tmp_path: Path) -> None:
    few = {"channels": [7, 8], "batches": [8, 9], "outputs": [8, 9]}
    (table,) = run(small_request("shapes", tmp_path, *CPU, seconds=0.001, **few))
    assert [row[:3] for row in table.rows] == [
        *((CHANNELS, "7", None), (CHANNELS, "8", "8")),
        *((BATCH, "8", "8"), (BATCH, "9", None)),
        *((OUTPUTS, "8", "8"), (OUTPUTS, "9", None)),
    ]
    assert [row[6] for row in table.rows] == ["8", None, None, "8", None, "8"]
    assert "on the CPU" in table.title
    assert "This ran on the CPU." in table.sentences[3]
    assert [row[9] is None for row in table.rows] == [row[6] is None for row in table.rows]
    assert len(table.plots) == 3


def test_a_size_too_large_for_the_memory_has_a_note_and_no_row(tmp_path: Path) -> None:
    """The failed multiple of 64 would be the nearest better size of 1000; all convolutions fail."""
    few = {"channels": [10**9, 10**9 + 1], "batches": [8, 9], "outputs": [1000, 1001, 64 * 10**12]}
    (table,) = run(small_request("shapes", tmp_path, *CPU, seconds=0.001, **few))
    assert [row[:2] for row in table.rows] == [(BATCH, "8"), (BATCH, "9"), (OUTPUTS, "1000"), (OUTPUTS, "1001")]
    assert [row[6] for row in table.rows] == [None, "8", None, "1000"]
    failed = [note.split(": ")[1] for note in table.notes[:3]]
    assert failed == ["channels, 1000000000", "channels, 1000000001", f"outputs, {64 * 10**12}"]
    assert len(table.plots) == 2


def test_flops_are_those_that_torch_counts() -> None:
    def counted(layer: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> int:
        for tensor in tensors:
            tensor.requires_grad_()
        with FlopCounterMode(display=False) as counter:
            torch.autograd.grad(layer(*tensors).sum(), tensors)
        return counter.get_total_flops()

    subject = subject_of(CPU)
    images, weights = torch.ones(4, 12, 2, 2), torch.ones(12, 12, 3, 3)
    assert convolution(subject, 12).flops == counted(partial(conv2d, padding=1), images, weights)
    for varies, num_images, outputs in ((BATCH, 5, 1000), (OUTPUTS, 4, 7)):
        layer = last_layer(subject, varies, 5 if varies == BATCH else 7)
        assert layer.flops == counted(linear, torch.ones(num_images, 2048), torch.ones(outputs, 2048))
        assert layer.num_images == num_images


def test_ratios_are_of_flops() -> None:
    """Twice the time for 257 / 256 of the work."""
    subject = subject_of(CPU)
    even, odd = last_layer(subject, OUTPUTS, 256), last_layer(subject, OUTPUTS, 257)
    table = table_of([(even, [1.0] * 6), (odd, [2.0 * 257 / 256] * 6)], subject)
    row = next(row for row in table.rows if row[1] == "257")
    assert row[6:] == ("256", pytest.approx(0.5), "0.50-0.50", "slower", pytest.approx(257 / 264))
    assert "last layer: outputs 257 (0.50)" in table.sentences[0]


def test_small_rates_have_two_digits() -> None:
    layer = last_layer(subject_of(CPU), OUTPUTS, 8)
    table = table_of([(layer, [layer.flops / 1e9 / rate for rate in (0.031, 0.033, 0.034)])], subject_of(CPU))
    assert table.texts()[0][4:6] == ["0.033", "0.031-0.034"]


@pytest.mark.parametrize("channels", [[], [0, 8]])
def test_invalid_sizes_name_their_key(channels: list[int], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="study=shapes: channels"):
        run(small_request("shapes", tmp_path, *CPU, channels=channels))


def test_sizes_are_compared_with_the_nearest_better_multiple() -> None:
    sizes = (248, 252, 255, 256, 257, 260, 264)
    assert [multiple_of(size) for size in sizes] == [8, 1, 1, 64, 1, 1, 8]
    assert [neighbour(size, sizes) for size in sizes] == [256, 256, 256, None, 256, 264, 256]
    assert neighbour(7, (5, 7)) is None


@pytest.mark.parametrize(("size", "power", "share"), [(256, 2, 1), (257, 1, 257 / 264), (257, 2, (257 / 264) ** 2)])
def test_padding_wastes_work(size: int, power: int, share: float) -> None:
    assert padded_share(size, 8, power) == pytest.approx(share)
