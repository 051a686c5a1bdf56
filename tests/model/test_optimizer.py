"""Optimizers: scaled rate, undecayed norms, fused where it exists."""

import pytest
import torch
from torch import nn

from imagenet_opt.errors import ConfigError
from imagenet_opt.model.optimizer import build_optimizer

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))


def build(net: nn.Module, name: str = "sgd", **options: object) -> torch.optim.Optimizer:
    net(torch.zeros(2, 3, 5, 5))
    settings = {"lr": 0.5, "weight_decay": 1e-4, "fused": None, "global_batch": 384} | options
    return build_optimizer(net, name, device=CPU, **settings)


def test_the_rate_is_per_256_images() -> None:
    assert [group["lr"] for group in build(network(), lr=0.5, global_batch=384).param_groups] == [0.75, 0.75]


def test_fused_is_for_gpus_unless_asked_for() -> None:
    assert build(network()).defaults["fused"] is False
    assert build(network(), fused=True).defaults["fused"] is True


def test_steps_are_those_of_sgd_by_hand() -> None:
    net = network()
    optimizer = build(net, momentum=0.9, nesterov=True, weight_decay=0.01)
    weights = [p.detach().clone() for p in net.parameters()]
    speeds = [torch.zeros_like(w) for w in weights]
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 3, 5, 5) * torch.arange(2.0).view(2, 1, 1, 1)).square().sum().backward()
        for i, p in enumerate(net.parameters()):
            slope = p.grad + (0.01 * weights[i] if p.ndim > 1 else 0)
            speeds[i] = 0.9 * speeds[i] + slope
            weights[i] = weights[i] - 0.75 * (slope + 0.9 * speeds[i])
        optimizer.step()
        for p, expected in zip(net.parameters(), weights, strict=True):
            torch.testing.assert_close(p.detach(), expected, rtol=1e-4, atol=1e-5)
        weights = [p.detach().clone() for p in net.parameters()]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("lamb", {"fused": True}, r"optimizer\.fused"),
        ("adam", {}, r"optimizer\.name='adam'.*sgd"),
        ("sgd", {"betas": (0.9, 0.99)}, r"optimizer\.betas"),
    ],
)
def test_what_an_optimizer_does_not_have_is_told(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(network(), name, **options)


@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb"])
def test_each_lowers_a_loss(name: str) -> None:
    net = network()
    optimizer = build(net, name, lr=0.01)
    images, labels = torch.randn(8, 3, 5, 5), torch.arange(8) % 2
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(net(images), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 2
