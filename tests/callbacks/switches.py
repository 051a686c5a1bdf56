"""How acceleration is switched on."""

import torch
from torch import nn

from tests.callbacks.conftest import Plain


def weights(module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.net.state_dict().items()}


def fitted(project, *callbacks, net: nn.Module, **options):
    module = Plain()
    module.net = net
    torch.manual_seed(7)
    return project.fit(*callbacks, module=module, **options)
