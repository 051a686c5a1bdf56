"""FLOPs of a network."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

TRAINING_FORWARDS = 3
"""A training step has as many FLOPs as this number of forward passes: the backward pass has about twice as many as the
forward pass (PaLM, arXiv 2204.02311, appendix B)."""


def forward_flops(net: nn.Module, image_size: int) -> int:
    """FLOPs of a forward pass for one image of `image_size` x `image_size` pixels; a multiply-add is two FLOPs.

    Weights and image are on the device `meta`, so nothing is computed and `net` does not change. The plain forward is
    called: neither a compiled forward nor hooks of `net`.
    """
    tensors = dict(net.named_parameters()) | dict(net.named_buffers())
    shapes = {f"net.{name}": torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    dtype = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
    num_images = 2  # batch norm in training needs more than one value
    image = torch.empty(num_images, 3, image_size, image_size, device="meta", dtype=dtype)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        functional_call(_Uncompiled(net), shapes, (image,))
    return int(counter.get_total_flops()) // num_images


class _Uncompiled(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits: Tensor = self.net.forward(images_NCHW)
        return logits
