"""Which weights decay, by the kind of layer that they belong to."""

import timm
import torch
from torch import nn

from imagenet_opt.model.param_groups import param_groups


def layer_kinds(network: nn.Module, parameters: list[nn.Parameter]) -> set[tuple[str, str]]:
    wanted = {id(parameter) for parameter in parameters}
    return {
        (type(layer).__name__, name)
        for layer in network.modules()
        for name, parameter in layer.named_parameters(recurse=False)
        if id(parameter) in wanted
    }


def test_kernels_and_matrices_decay_and_norms_and_biases_do_not() -> None:
    network = timm.create_model("resnet10t", num_classes=3)
    decayed, undecayed = param_groups(network, 5e-5)
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (5e-5, 0.0)
    assert layer_kinds(network, decayed["params"]) == {("Conv2d", "weight"), ("Linear", "weight")}
    norms = {("BatchNorm2d", "weight"), ("BatchNorm2d", "bias")}
    assert layer_kinds(network, undecayed["params"]) == norms | {("Linear", "bias")}


def test_every_trained_parameter_is_in_one_group_once() -> None:
    network = timm.create_model("resnet10t", num_classes=3)
    network.conv1.requires_grad_(False)
    groups = param_groups(network, 5e-5)
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(parameter) for parameter in network.parameters() if parameter.requires_grad}
    torch.optim.SGD(groups, lr=0.1)
