"""When the network is called and when its graph, and what a capture leaves alone.

torch captures on a GPU only: that training with graphs is right, tests/gpu/test_cuda_graph.py proves.
"""

import copy
import weakref

import pytest
import torch
from torch import Tensor, nn

from imagenet_opt.model.cuda_graph import GraphedForward


class Recorder:
    """A capture that calls the network once, as to warm up, and whose replays have one memory for their logits."""

    def __init__(self) -> None:
        self.replayed: list[torch.Size] = []
        self.autocast: list[tuple[bool, bool]] = []
        self.memory: list[weakref.ref[Tensor]] = []

    def __call__(self, module: nn.Module, sample: tuple[Tensor]) -> nn.Module:
        self.autocast.append((torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()))
        static_logits, forward = module(sample[0]).detach(), module.forward
        self.memory.append(weakref.ref(static_logits))

        def replay(images: Tensor) -> Tensor:
            self.replayed.append(images.shape)
            return static_logits.copy_(forward(images).detach())

        module.forward = replay
        return module


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.0), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )


def images(num: int = 4, side: int = 8, seed: int = 1) -> Tensor:
    return torch.randn(num, 3, side, side, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_only_captured_shapes_are_replayed_and_only_in_training(recorder: Recorder) -> None:
    net = network()
    graphed = GraphedForward(net, recorder)
    graphed.capture(images(4, 8))
    graphed.capture(images(4, 12))
    for batch in (images(4, 8), images(4, 12), images(3, 8), images(4, 16), images(4, 8)):
        net(batch)
    assert recorder.replayed == [(4, 3, 8, 8), (4, 3, 12, 12), (4, 3, 8, 8)]
    recorder.replayed.clear()
    with torch.no_grad():
        net(images())
    with torch.autocast("cpu", torch.bfloat16):
        net(images())
    net(images().requires_grad_())
    copy.deepcopy(net)(images())
    net.eval()(images())
    graphed.release()
    net.train()(images())
    assert recorder.replayed == []


def test_a_network_that_changed_since_is_not_replayed(recorder: Recorder) -> None:
    net = network()
    GraphedForward(net, recorder).capture(images())
    net.load_state_dict({name: tensor.clone() for name, tensor in net.state_dict().items()})  # in place
    net(images())
    assert len(recorder.replayed) == 1
    net[1].eval()  # statistics no longer change
    net(images())
    net[1].train()
    net[5].weight.requires_grad_(False)
    net(images())
    net[5].weight.requires_grad_(True)
    net[5].weight.data = net[5].weight.data.clone()  # another place
    net(images())
    assert len(recorder.replayed) == 1


def test_a_forward_before_the_backward_of_the_previous_one_is_not_replayed() -> None:
    """A graph has one memory for what its backward reads. Such a step is not one of this project's, but of a GAN."""
    replayed: list[Tensor] = []

    def capture(module: nn.Module, sample: tuple[Tensor]) -> nn.Module:
        module.register_forward_pre_hook(lambda module, args: replayed.append(args[0]))
        return module

    net = network()
    GraphedForward(net, capture).capture(images())
    first = net(images())
    second = net(images())
    assert len(replayed) == 1
    (first.sum() + second.sum()).backward()
    net(images())  # its logits are dropped
    net(images()).sum().backward()
    assert len(replayed) == 3
