from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from imagenet_opt.study.kinds.streams import ADDED, WHOLE, backward_in_turn
from tests.study.studies import TINY, table_of


def test_without_a_gpu_rows_with_streams_are_left_out(tmp_path: Path) -> None:
    words = (*TINY, "trainer.accelerator=cpu")
    table = table_of("streams", tmp_path, *words, seconds=0.01, repeats=1, num_batches=[2])
    assert [row[:2] for row in table.rows] == [("2", ADDED), ("2", WHOLE)]
    assert [row[4] for row in table.rows] == [None, f"2 batches {ADDED}"]
    assert all(float(row[2] or 0) > 0 for row in table.rows)
    assert "need a GPU" in table.left_out[0]


def test_batches_in_turn_have_the_gradients_of_one_large_batch() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).double()
    images, labels = torch.randn(12, 3, 8, 8, dtype=torch.float64), torch.randint(5, (12,))

    def loss(rows: slice) -> torch.Tensor:
        return cross_entropy(net(images[rows]), labels[rows])

    backward_in_turn([partial(loss, slice(i, i + 4)) for i in (0, 4, 8)])
    gradients = torch.autograd.grad(loss(slice(None)), list(net.parameters()))
    torch.testing.assert_close([parameter.grad for parameter in net.parameters()], list(gradients))
