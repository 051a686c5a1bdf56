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
    assert build(network(), momentum=0.9).param_groups[0]["lr"] == 0.75


def test_only_kernels_and_matrices_decay_and_every_parameter_is_there_once() -> None:
    net = network()
    decayed, undecayed = build(net).param_groups
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (1e-4, 0.0)
    assert [tuple(p.shape) for p in decayed["params"]] == [(4, 3, 3, 3), (2, 36)]
    assert {id(p) for p in net.parameters()} == {id(p) for g in (decayed, undecayed) for p in g["params"]}


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
