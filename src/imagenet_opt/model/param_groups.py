"""Which weights decay."""

from typing import Any

from torch import nn


def param_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices and kernels decay; biases and norm parameters (one dimension or fewer) do not.

    Source: Bag of Tricks, arXiv 1812.01187, section 3.1.
    """
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
