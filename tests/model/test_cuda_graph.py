"""Who is asked, the graph or the network, and that nothing shows but the speed.

torch can capture on a GPU only; what stands in for it here has the same static memory, and so the same pitfalls.
"""

import copy
import weakref

import pytest
import torch
from torch import Tensor, nn

from imagenet_opt.model.cuda_graph import GraphedForward


class StandIn:
    """Like torch.cuda.make_graphed_callables: three forwards and backwards to warm up, then one copy of images, logits
    and gradients, which each replay writes over. The logits of each forward are kept as autograd has them, and what is
    captured refers to itself."""

    def __init__(self) -> None:
        self.shapes: list[torch.Size] = []
        self.replayed: list[torch.Size] = []
        self.autocast: list[tuple[bool, bool]] = []
        self.logits: list[Tensor] = []
        self.captured: list[weakref.ref[nn.Module]] = []

    def __call__(self, module: nn.Module, sample: tuple[Tensor]) -> nn.Module:
        (static_images,) = sample
        parameters = tuple(module.parameters())
        self.shapes.append(static_images.shape)
        self.autocast.append((torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()))
        for _ in range(3):
            self.logits.append(module(static_images))
            torch.autograd.grad(self.logits[-1].sum(), parameters)
        forward, replayed = module.forward, self.replayed
        static_logits = forward(static_images)
        self.logits.append(static_logits)
        self.captured.append(weakref.ref(module))
        static_grads = [torch.zeros_like(parameter) for parameter in parameters]

        class Replay(torch.autograd.Function):
            @staticmethod
            def forward(ctx, images: Tensor, *_) -> Tensor:
                replayed.append(images.shape)
                static_images.copy_(images)
                with torch.enable_grad():
                    ctx.live = forward(static_images)
                return static_logits.copy_(ctx.live.detach()).detach()

            @staticmethod
            def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
                for static, new in zip(static_grads, torch.autograd.grad(ctx.live, parameters, grad), strict=True):
                    static.copy_(new)
                return None, *(static.detach() for static in static_grads)

        module.forward = lambda images: Replay.apply(images, *parameters)
        return module


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )


def images(num: int = 4, side: int = 8, seed: int = 1) -> Tensor:
    return torch.randn(num, 3, side, side, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


def test_only_captured_shapes_in_training_are_replayed(stand_in: StandIn) -> None:
    net = network()
    graphed = GraphedForward(net, stand_in)
    graphed.capture(images(4, 8))
    graphed.capture(images(4, 12))
    for batch in (images(4, 8), images(4, 12), images(3, 8), images(4, 16), images(4, 8)):
        net(batch)
    assert stand_in.shapes == [(4, 3, 8, 8), (4, 3, 12, 12)]
    assert stand_in.replayed == [(4, 3, 8, 8), (4, 3, 12, 12), (4, 3, 8, 8)]
    stand_in.replayed.clear()
    with torch.no_grad():
        net(images())
    net(images().double().float().requires_grad_())
    with torch.autocast("cpu", torch.bfloat16):
        net(images())
    net.eval()
    net(images())
    assert stand_in.replayed == []
    net.train()
    graphed.release()
    net(images())
    assert stand_in.replayed == [] and net._compiled_call_impl is None


def test_training_is_as_without_it_with_micro_batches_and_two_sizes(stand_in: StandIn) -> None:
    plain, net = network(), network()
    graphed = GraphedForward(net, stand_in)
    for captured in (images(4, 8), images(4, 12)):
        graphed.capture(captured)
    for each in (plain, net):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9)
        kept = []
        for step in range(6):
            side = 8 if step < 3 else 12
            for part, num in enumerate((4, 4, 4, 2)):  # gradients of three replays and one eager part are added up
                logits = each(images(num, side, seed=10 * step + part))
                nn.functional.cross_entropy(logits, torch.arange(num) % 3).backward()
                kept.append(logits.detach())
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        each.kept = torch.cat(kept)
    assert len(stand_in.replayed) == 18
    torch.testing.assert_close(net.kept, plain.kept)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], tensor, msg=name)
    torch.testing.assert_close(net.eval()(images()), plain.eval()(images()))


def test_a_capture_leaves_buffers_random_state_gradients_and_keys(stand_in: StandIn) -> None:
    net = network()
    net.insert(5, nn.Dropout(0.5))
    net(images()).sum().backward()
    before, keys = {name: tensor.clone() for name, tensor in net.state_dict().items()}, list(net.state_dict())
    gradients, names = [parameter.grad.clone() for parameter in net.parameters()], dict(net.named_parameters()).keys()
    state = torch.get_rng_state()
    GraphedForward(net, stand_in).capture(images())
    assert list(net.state_dict()) == keys and dict(net.named_parameters()).keys() == names
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())
    assert all(torch.equal(p.grad, old) for p, old in zip(net.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_autocast_is_captured_as_it_is_without_its_cache(stand_in: StandIn) -> None:
    graphed = GraphedForward(network(), stand_in)
    with torch.autocast("cpu", torch.bfloat16):
        graphed.capture(images())
        assert torch.is_autocast_cache_enabled()
    graphed.capture(images())
    assert stand_in.autocast == [(True, False), (False, False)]


def test_a_network_that_changed_since_is_not_replayed(stand_in: StandIn) -> None:
    net = network()
    GraphedForward(net, stand_in).capture(images())
    weights = net.state_dict()
    net.load_state_dict({name: tensor.clone() for name, tensor in weights.items()})  # in place
    net(images())
    assert len(stand_in.replayed) == 1
    net[1].eval()  # statistics no longer change
    net(images())
    net[1].train()
    net[5].weight.requires_grad_(False)
    net(images())
    net[5].weight.requires_grad_(True)
    net[5].weight.data = net[5].weight.data.clone()  # another place
    net(images())
    assert len(stand_in.replayed) == 1


def test_what_was_compiled_is_captured_and_comes_back(stand_in: StandIn) -> None:
    net = network()
    net.compile(backend="eager")
    compiled = net._compiled_call_impl
    graphed = GraphedForward(net, stand_in)
    graphed.capture(images())
    torch.testing.assert_close(net(images()), network()(images()))
    assert stand_in.replayed
    graphed.release()
    assert net._compiled_call_impl is compiled


@pytest.mark.parametrize("last", [nn.Identity(), nn.Unflatten(1, (3, 1))], ids=["tensor", "view"])
def test_autograd_keeps_nothing_of_the_warm_up_and_the_capture(stand_in: StandIn, last: nn.Module) -> None:
    """Else the gradients of each later backward would be added on their stream."""
    net = network().append(last)
    GraphedForward(net, stand_in).capture(images())
    assert [logits.grad_fn for logits in stand_in.logits] == [None] * 4
    net(images()).sum().backward()
    assert stand_in.replayed and all(parameter.grad is not None for parameter in net.parameters())


def test_what_was_captured_is_gone_when_it_is_released(stand_in: StandIn) -> None:
    graphed = GraphedForward(network(), stand_in)
    graphed.capture(images(4, 8))
    graphed.capture(images(4, 12))
    assert all(captured() is not None for captured in stand_in.captured)
    graphed.release()
    assert [captured() for captured in stand_in.captured] == [None, None]


def test_copies_have_no_graph(stand_in: StandIn) -> None:
    net = network()
    GraphedForward(net, stand_in).capture(images())
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin[5].bias += 1
    torch.testing.assert_close(twin(images()), net(images()) + 1)
    assert len(stand_in.replayed) == 1


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
