"""When the network is called and when its graph.

torch captures on a GPU only: that training with graphs is right, tests/gpu/test_cuda_graph.py proves.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from imagenet_opt.model.cuda_graph import GraphedForward


def images(num: int = 4, side: int = 8) -> Tensor:
    return torch.ones(num, 3, side, side)


@pytest.fixture
def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))


@pytest.fixture
def graphed(network: nn.Module) -> tuple[GraphedForward, list[torch.Size]]:
    """The network with a graph of `images()`, and the shapes of all replays."""
    replayed: list[torch.Size] = []

    def capture(module: nn.Module, sample: tuple[Tensor]) -> nn.Module:
        module.register_forward_pre_hook(lambda module, args: replayed.append(args[0].shape))
        return module

    made = GraphedForward(network, capture)
    made.capture(images())
    return made, replayed


def test_only_captured_shapes_are_replayed_and_only_in_training(network, graphed) -> None:
    made, replayed = graphed
    made.capture(images(4, 12))
    for batch in (images(), images(4, 12), images(3), images(4, 16), images()):
        network(batch).sum().backward()
    assert replayed == [(4, 3, 8, 8), (4, 3, 12, 12), (4, 3, 8, 8)]
    replayed.clear()
    with torch.no_grad():
        network(images())
    with torch.autocast("cpu", torch.bfloat16):
        network(images())
    network(images().requires_grad_())
    copy.deepcopy(network)(images())
    network.eval()(images())
    made.release()
    network.train()(images())
    assert replayed == []


def freeze(network: nn.Module) -> None:
    network[4].weight.requires_grad_(False)


def move(network: nn.Module) -> None:
    network[4].weight.data = network[4].weight.data.clone()


def load(network: nn.Module) -> None:
    network.load_state_dict({name: tensor.clone() for name, tensor in network.state_dict().items()})  # in place


@pytest.mark.parametrize(
    ("change", "is_replayed"),
    [(load, True), (lambda network: network[1].eval(), False), (freeze, False), (move, False)],
)
def test_a_network_that_changed_since_is_not_replayed(
    change: Callable[[nn.Module], object], is_replayed: bool, network, graphed
) -> None:
    change(network)
    network(images())
    assert len(graphed[1]) == is_replayed


def test_a_forward_before_the_backward_of_the_previous_one_is_not_replayed(network, graphed) -> None:
    """A graph has one memory for what its backward reads. Such a step is not one of this project's, but of a GAN."""
    replayed = graphed[1]
    first = network(images())
    second = network(images())
    assert len(replayed) == 1
    (first.sum() + second.sum()).backward()
    network(images())  # its logits are dropped
    network(images()).sum().backward()
    assert len(replayed) == 3
