"""Batches on streams of their own give the gradients of one batch with all their images."""

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from suites.studies.streams import backward_in_turn, backward_on_streams


def loss(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(net(images), labels)


def test_streams_have_the_gradients_of_one_large_batch() -> None:
    """Without batch norm, which would see other batches. Twice, so that memory is used again."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(9))
    net = net.cuda().double()
    images, labels = torch.randn(256, 3, 32, 32, device="cuda", dtype=torch.float64), torch.arange(256).cuda() % 9
    net(images)  # gives the last layer its size
    other = copy.deepcopy(net)
    parts = list(zip(images.chunk(4), labels.chunk(4), strict=True))
    streams = [torch.cuda.Stream() for _ in parts]
    for _ in range(2):
        net.zero_grad()
        other.zero_grad()
        backward_on_streams([partial(loss, net, *part) for part in parts], list(net.parameters()), streams)
        backward_in_turn([partial(loss, other, images, labels)])
        ours, theirs = ([parameter.grad for parameter in one.parameters()] for one in (net, other))
        torch.testing.assert_close(ours, theirs)
