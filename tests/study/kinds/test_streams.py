from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from imagenet_opt.study.kinds.streams import backward_in_turn


def test_batches_in_turn_have_the_gradients_of_one_large_batch() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).double()
    images, labels = torch.randn(12, 3, 8, 8, dtype=torch.float64), torch.randint(5, (12,))

    def loss(rows: slice) -> torch.Tensor:
        return cross_entropy(net(images[rows]), labels[rows])

    backward_in_turn([partial(loss, slice(i, i + 4)) for i in (0, 4, 8)])
    gradients = torch.autograd.grad(loss(slice(None)), list(net.parameters()))
    torch.testing.assert_close([parameter.grad for parameter in net.parameters()], list(gradients))
