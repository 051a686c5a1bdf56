"""Replaces a network's computation while a device is simulated."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from imagenet_opt.errors import ConfigError


class NullNetwork:
    """A forward that computes nothing: it returns zero logits of the right shape, which support a backward.

    net: the network; its own forward runs once if it has no attribute `num_classes`.
    launch: called with images (N, 3, H, W), and with training=False if no backward follows.
    """

    def __init__(self, net: nn.Module, launch: Callable[..., None]) -> None:
        self._net, self._forward, self._launch = net, net.forward, launch
        self._shape: torch.Size | None = None

    def __call__(self, images: Tensor, *args: Any, **options: Any) -> Tensor:
        training = torch.is_grad_enabled()
        if self._shape is None:
            self._shape = self._find_shape(images, *args, **options)
        self._launch(images, training=training)
        return torch.zeros(len(images), *self._shape, requires_grad=training)

    def _find_shape(self, images: Tensor, *args: Any, **options: Any) -> torch.Size:
        """Shape of the logits of one image."""
        if isinstance(num_classes := getattr(self._net, "num_classes", None), int):
            return torch.Size([num_classes])
        modes = [(module, module.training) for module in self._net.modules()]
        self._net.eval()
        try:
            with torch.no_grad():
                logits = self._forward(images[:1], *args, **options)
        finally:
            for module, mode in modes:
                module.training = mode
        if not isinstance(logits, Tensor):
            output = f"{type(self._net).__name__} returns a {type(logits).__name__}"
            raise ConfigError(f"callbacks.rehearsal.network: {output}, expected logits")
        return logits.shape[1:]


def burn(seconds: float) -> None:
    """Use `seconds` of CPU time, which takes longer on a busy CPU."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
