from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from imagenet_opt.measure.stats.rounds import Rounds
from imagenet_opt.study.kinds.streams import (
    ADDED,
    EACH,
    EACH_ON_STREAMS,
    STREAMS,
    WHOLE,
    Trained,
    backward_in_turn,
    run,
    table_of,
)
from imagenet_opt.study.kinds.synthetic_step import subject_of
from tests.study.studies import TINY, small_request

CPU = (*TINY, "trainer.accelerator=cpu")


@pytest.mark.slow
def test_without_a_gpu_rows_with_streams_are_left_out(tmp_path: Path) -> None:
    (table,) = run(small_request("streams", tmp_path, *CPU, num_batches=[2], seconds=0.01))
    assert [row[:3] for row in table.rows] == [("2", EACH, 2.0), ("2", ADDED, 1.0), ("2", WHOLE, 1.0)]
    assert all(float(row[3] or 0) > 0 for row in table.rows)
    assert table.columns[-1].heading == "verdict"
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert any("CUDA streams need a GPU, and this ran on the CPU" in note for note in table.notes)


def test_streams_are_compared_with_the_same_step_in_turn() -> None:
    def rate(images_per_second: float) -> list[Trained]:
        return [Trained(images_per_second * (1 + i / 100), 1.5) for i in range(6)]

    rounds = Rounds(
        {
            f"4 {EACH}": rate(90),
            f"4 {EACH_ON_STREAMS}": rate(45),
            f"4 {ADDED}": rate(100),
            f"4 {STREAMS}": rate(100),
            f"4 {WHOLE}": [],
        },
        {f"4 {WHOLE}": "the GPU's memory does not hold it"},
    )
    table = table_of(rounds, subject_of(CPU), (4,))
    rows = {row[1]: row for row in table.rows}
    assert table.columns[-1].heading == "peak GiB"
    assert rows[STREAMS][5:] == ("added in turn", pytest.approx(1.0), "1.00-1.00", "no difference", 1.5)
    assert rows[EACH][8] == "slower"
    row = rows[EACH_ON_STREAMS]
    assert (row[2], row[5], row[8]) == (4.0, "a step each in turn", "slower") and row[6] == pytest.approx(0.5)
    assert rows[WHOLE][3:] == (None,) * 7
    assert f"4 {WHOLE}: the GPU's memory does not hold it" in table.notes


def test_without_the_baseline_nothing_is_compared() -> None:
    turns = [Trained(90.0 + i, None) for i in range(3)]
    rounds = Rounds({f"2 {EACH}": turns, f"2 {ADDED}": [], f"2 {WHOLE}": turns}, {f"2 {ADDED}": "no"})
    rows = {row[1]: row for row in table_of(rounds, subject_of(CPU), (2,)).rows}
    assert rows[EACH][3] == 91.0 and rows[EACH][5:9] == (None,) * 4


def test_batches_in_turn_have_the_gradients_of_one_large_batch() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).double()
    images, labels = torch.randn(12, 3, 8, 8, dtype=torch.float64), torch.randint(5, (12,))

    def loss(rows: slice) -> torch.Tensor:
        return cross_entropy(net(images[rows]), labels[rows])

    backward_in_turn([partial(loss, slice(i, i + 4)) for i in (0, 4, 8)])
    gradients = torch.autograd.grad(loss(slice(None)), list(net.parameters()))
    torch.testing.assert_close([parameter.grad for parameter in net.parameters()], list(gradients))
