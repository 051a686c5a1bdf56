"""Batches on streams of their own give the gradients of one batch with all their images."""

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from imagenet_opt.study.kinds.streams import backward_in_turn, backward_on_streams, in_turn_on_streams


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


def test_steps_on_streams_of_their_own_wait_for_the_weights_before_them() -> None:
    """Long products, so that a step that did not wait would read the weights too early."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6)), nn.Linear(2048, 9)).cuda()
    other = copy.deepcopy(net)
    parts = list(zip(torch.randn(4, 2048, 2048).cuda(), torch.arange(2048).repeat(4, 1).cuda() % 9, strict=True))
    streams = [torch.cuda.Stream() for _ in parts]

    def step(one: nn.Module, images: Tensor, labels: Tensor) -> None:
        loss(one, images, labels).backward()
        with torch.no_grad():
            for parameter in one.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None

    for _ in range(3):
        in_turn_on_streams([partial(step, net, *part) for part in parts], streams)
        for part in parts:
            step(other, *part)
    torch.testing.assert_close(list(net.parameters()), list(other.parameters()), rtol=1e-4, atol=1e-4)
