"""Batched products beside timm's own Muon."""

import copy
from typing import Any

import pytest
import torch
from timm.optim.muon import Muon
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from imagenet_opt.model.muon import BatchedMuon
from imagenet_opt.model.optimizer import build_optimizer


class Products(TorchDispatchMode):
    num = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        self.num += "mm." in str(function)
        return function(*args, **(options or {}))


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_step_equals_timms_with_fewer_products(nesterov: bool) -> None:
    options = {"momentum": 0.95, "nesterov": nesterov, "betas": (0.9, 0.99), "adjust_lr_fn": "original"}
    layers = [nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 1)]
    net = nn.Sequential(*layers, nn.Linear(72, 8)).to(memory_format=torch.channels_last)
    nets = [net, copy.deepcopy(net)]
    theirs = Muon(nets[0].parameters(), lr=0.02, weight_decay=0.05, **options)
    ours = build_optimizer(
        nets[1],
        "muon",
        lr=0.02,
        weight_decay=0.05,
        no_decay="none",
        global_batch=256,
        device=torch.device("cpu"),
        **options,
    )
    assert type(ours) is BatchedMuon
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
