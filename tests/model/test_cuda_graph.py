"""When the network is called and when its graph, and what a capture leaves alone.

torch captures on a GPU only: that training with graphs is right, tests/gpu/test_cuda_graph.py proves.
"""

import copy

import pytest
import torch
from torch import Tensor, nn

from imagenet_opt.model.cuda_graph import GraphedForward


class Recorder:
    """A capture that calls the network once to warm up, and whose replay gives the same memory again and again."""

    def __init__(self) -> None:
        self.shapes: list[torch.Size] = []
        self.replayed: list[torch.Size] = []
        self.autocast: list[tuple[bool, bool]] = []

    def __call__(self, module: nn.Module, sample: tuple[Tensor]) -> nn.Module:
        self.shapes.append(sample[0].shape)
        self.autocast.append((torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()))
        static_logits, forward = module(sample[0]).detach(), module.forward

        def replay(images: Tensor) -> Tensor:
            self.replayed.append(images.shape)
            return static_logits.copy_(forward(images).detach())

        module.forward = replay
        return module


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )


def images(num: int = 4, side: int = 8, seed: int = 1) -> Tensor:
    return torch.randn(num, 3, side, side, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_only_captured_shapes_in_training_are_replayed(recorder: Recorder) -> None:
    net = network()
    graphed = GraphedForward(net, recorder)
    graphed.capture(images(4, 8))
    graphed.capture(images(4, 12))
    for batch in (images(4, 8), images(4, 12), images(3, 8), images(4, 16), images(4, 8)):
        net(batch)
    assert recorder.shapes == [(4, 3, 8, 8), (4, 3, 12, 12)]
    assert recorder.replayed == [(4, 3, 8, 8), (4, 3, 12, 12), (4, 3, 8, 8)]
    recorder.replayed.clear()
    with torch.no_grad():
        net(images())
    net(images().double().float().requires_grad_())
    with torch.autocast("cpu", torch.bfloat16):
        net(images())
    net.eval()
    net(images())
    assert recorder.replayed == []
    net.train()
    graphed.release()
    net(images())
    assert recorder.replayed == [] and net._compiled_call_impl is None


def test_logits_and_gradients_are_kept_from_the_next_replay(recorder: Recorder) -> None:
    net = network()
    GraphedForward(net, recorder).capture(images())
    net[5].bias.grad = gradient = torch.ones(3)
    first = net(images(seed=1))
    kept = first.clone()
    net(images(seed=2))
    assert torch.equal(first, kept)
    assert net[5].bias.grad is not gradient and torch.equal(net[5].bias.grad, gradient)


def test_a_capture_leaves_buffers_random_state_gradients_and_keys(recorder: Recorder) -> None:
    net = network()
    net.insert(5, nn.Dropout(0.5))
    net(images()).sum().backward()
    before, keys = {name: tensor.clone() for name, tensor in net.state_dict().items()}, list(net.state_dict())
    gradients, names = [parameter.grad.clone() for parameter in net.parameters()], dict(net.named_parameters()).keys()
    state = torch.get_rng_state()
    GraphedForward(net, recorder).capture(images())
    assert list(net.state_dict()) == keys and dict(net.named_parameters()).keys() == names
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())
    assert all(torch.equal(p.grad, old) for p, old in zip(net.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_autocast_is_captured_as_it_is_without_its_cache(recorder: Recorder) -> None:
    graphed = GraphedForward(network(), recorder)
    with torch.autocast("cpu", torch.bfloat16):
        graphed.capture(images())
        assert torch.is_autocast_cache_enabled()
    graphed.capture(images())
    assert recorder.autocast == [(True, False), (False, False)]


def test_a_network_that_changed_since_is_not_replayed(recorder: Recorder) -> None:
    net = network()
    GraphedForward(net, recorder).capture(images())
    weights = net.state_dict()
    net.load_state_dict({name: tensor.clone() for name, tensor in weights.items()})  # in place
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


def test_what_was_compiled_is_captured_and_comes_back(recorder: Recorder) -> None:
    net = network()
    net.compile(backend="eager")
    compiled = net._compiled_call_impl
    graphed = GraphedForward(net, recorder)
    graphed.capture(images())
    torch.testing.assert_close(net(images()), network()(images()))
    assert recorder.replayed
    graphed.release()
    assert net._compiled_call_impl is compiled


def test_copies_have_no_graph(recorder: Recorder) -> None:
    net = network()
    GraphedForward(net, recorder).capture(images())
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin[5].bias += 1
    torch.testing.assert_close(twin(images()), net(images()) + 1)
    assert len(recorder.replayed) == 1


def test_a_failed_capture_leaves_the_network_as_it_was() -> None:
    def fail(module: nn.Module, sample: tuple[Tensor]) -> nn.Module:
        module(*sample)
        raise RuntimeError("operation not permitted when stream is capturing")

    net = network()
    graphed = GraphedForward(net, fail)
    with pytest.raises(RuntimeError, match="capturing"):
        graphed.capture(images())
    for name, tensor in network().state_dict().items():
        assert torch.equal(net.state_dict()[name], tensor)
    torch.testing.assert_close(net(images()), network()(images()))
