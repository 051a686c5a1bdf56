"""Optimizers by timm's names; tests/plan/test_plan.py shows which tensors the rules of recipes decay."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2, list_optimizers
from timm.optim.muon import Muon
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from imagenet_opt.errors import ConfigError
from imagenet_opt.model.optimizer import build_optimizer


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 2))


def build(net: nn.Module, name: str = "sgd", **options: object) -> torch.optim.Optimizer:
    settings = {"lr": 0.5, "weight_decay": 1e-4, "fused": None, "global_batch": 384} | options
    return build_optimizer(net, name, device=torch.device("cpu"), **settings)


def test_options_that_an_optimizer_cannot_take_are_refused() -> None:
    for name, option, value in (("lamb", "fused", True), ("sgd", "layer_decay", 1.5)):
        with pytest.raises(ConfigError, match=rf"optimizer\.{option}"):
            build(network(), name, **{option: value})


NEEDS_CUDA = {name for name in list_optimizers() if name.startswith(("bnb", "fused"))}


@pytest.mark.filterwarnings("ignore:It is highly recommended to have 'opt_einsum'")
def test_every_name_of_timm_makes_the_optimizer_that_timm_makes() -> None:
    net = network()
    for name in sorted({*list_optimizers()} - NEEDS_CUDA - {"adahessian"}):
        theirs = create_optimizer_v2([*net.parameters()], name, lr=0.75)
        ours = build(net, name)
        assert isinstance(ours, type(theirs)), name
        for option in theirs.param_groups[0].keys() - {"params", "weight_decay", "fused"}:
            assert ours.param_groups[0][option] == theirs.param_groups[0][option], (name, option)


@pytest.mark.parametrize("model", ["test_vit", "swin_tiny_patch4_window7_224", "test_resnet"])
def test_timm_selects_the_decayed_parameters(model: str) -> None:
    small = {"embed_dim": 8, "depths": (1, 1), "num_heads": (2, 2), "img_size": 56} if "swin" in model else {}
    net = timm.create_model(model, num_classes=3, **small)
    theirs = create_optimizer_v2(net, "adamw", weight_decay=0.25)
    ours = build(net, "adamw", weight_decay=0.25)
    assert decay_of(ours, net) == decay_of(theirs, net)
    assert [group["weight_decay"] for group in ours.param_groups] == [0.25, 0.0]  # as checkpoints have them
    undecayed = {name for name, decay in decay_of(ours, net).items() if decay == 0 and "." not in name}
    assert undecayed == ({"cls_token", "pos_embed", "reg_token"} & {name for name, _ in net.named_parameters()})


def decay_of(optimizer: torch.optim.Optimizer, net: nn.Module, option: str = "weight_decay") -> dict[str, float]:
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    return {names[id(p)]: group[option] for group in optimizer.param_groups for p in group["params"]}


@pytest.mark.parametrize("model", ["test_vit", "test_resnet"])
def test_layers_have_the_rates_and_the_decay_of_timm(model: str) -> None:
    net = timm.create_model(model, num_classes=3)
    theirs = create_optimizer_v2(net, "adamw", weight_decay=0.25, layer_decay=0.7)
    ours = build(net, "adamw", weight_decay=0.25, layer_decay=0.7)  # its peak rate is 0.75
    scales = decay_of(theirs, net, "lr_scale")
    assert decay_of(ours, net, "lr") == {name: pytest.approx(0.75 * scale) for name, scale in scales.items()}
    assert decay_of(ours, net) == decay_of(theirs, net)


@pytest.fixture
def new_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("new_memory_is_nan")
def test_a_first_step_that_loss_scaling_skips_leaves_no_garbage_in_fused_momentum() -> None:
    nets = [network(), network()]
    fused, plain = (build(net, fused=is_fused) for net, is_fused in zip(nets, (True, False), strict=True))
    for value in (torch.inf, 1.0, 2.0):
        for net, optimizer in zip(nets, (fused, plain), strict=True):
            scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
            scaler.scale(torch.ones(()))
            for parameter in net.parameters():
                parameter.grad = torch.full_like(parameter, value)
            scaler.step(optimizer)
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(one, other)


class Products(TorchDispatchMode):
    num = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        self.num += "mm." in str(function)
        return function(*args, **(options or {}))


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_step_of_muon_equals_timms_with_fewer_products(nesterov: bool) -> None:
    options = {"momentum": 0.95, "nesterov": nesterov, "betas": (0.9, 0.99), "adjust_lr_fn": "original"}
    layers = [nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 1)]
    net = nn.Sequential(*layers, nn.Linear(72, 8)).to(memory_format=torch.channels_last)
    nets = [net, copy.deepcopy(net)]
    theirs = Muon(nets[0].parameters(), lr=0.02, weight_decay=0.05, **options)
    ours = build(nets[1], "muon", lr=0.02, weight_decay=0.05, no_decay="none", global_batch=256, **options)
    torch.manual_seed(0)
    num = []
    for _ in range(2):
        for one, other in zip(*(net.parameters() for net in nets), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in (theirs, ours):
            with Products() as products:
                optimizer.step()
            num.append(products.num)
    assert num[:2] == [75, 30]  # of five matrices, in two shapes
    torch.testing.assert_close(list(nets[1].parameters()), list(nets[0].parameters()), rtol=0, atol=1e-6)
    theirs.load_state_dict(ours.state_dict())
