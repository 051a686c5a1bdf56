"""FLOPs of a network, relative to the GPU's peak (MFU)."""

import re

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

TRAINING_FORWARDS = 3
"""A training step has as many FLOPs as this number of forward passes: the backward pass has about twice as many as the
forward pass (PaLM, arXiv 2204.02311, appendix B)."""

_PEAKS: dict[str, dict[str, float]] = {
    r"NVIDIA A100\b.*": {"bf16": 312, "fp16": 312, "tf32": 156, "fp32": 19.5},
    r"NVIDIA H100 80GB HBM3": {"bf16": 989, "fp16": 989, "tf32": 495, "fp32": 67},
    r"NVIDIA H100 PCIe": {"bf16": 756, "fp16": 756, "tf32": 378, "fp32": 51},
    r"NVIDIA H200": {"bf16": 989, "fp16": 989, "tf32": 495, "fp32": 67},
    r"NVIDIA L4": {"bf16": 121, "fp16": 121, "tf32": 60, "fp32": 30.3},
    r"Tesla T4": {"fp16": 65, "fp32": 8.1},
    r"Tesla V100-SXM2\b.*": {"fp16": 125, "fp32": 15.7},
}
"""Name as torch reports it -> TFLOP/s without sparsity, from NVIDIA's datasheets (A100, H100, H200, L4, T4, V100).

The datasheets of H100, H200 and L4 give tensor-core rates with sparsity, which are twice these. A10G is absent: NVIDIA
has published no datasheet for it, and the A10's 125 TFLOP/s do not apply to it.
"""


def known_peak(device_name: str, kind: str) -> float | None:
    """Peak TFLOP/s from the datasheet; None for an unknown GPU or a part of one (MIG). kind: bf16, fp16, tf32 or
    fp32."""
    if "MIG" in device_name:
        return None
    return next((peaks.get(kind) for name, peaks in _PEAKS.items() if re.fullmatch(name, device_name)), None)


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
