"""A network's forward pass, compiled by torch for training, and when that pays."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from imagenet_opt.model.cuda_graph import move_gradients
from imagenet_opt.model.rollback import Rollback

WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Each mode of torch.compile that makes CUDA graphs -> the same mode without CUDA graphs."""
AUTO: Literal["auto"] = "auto"
EARNED_PIXELS = 5e10
"""Pixels of all training images of a run from which compiling earns its time back: one million images of 224 px.

Measured with ResNet-50 on an H100 (docs/results_gpu.md): compiling took 72 s, and training in bfloat16 rose from 4,110
to 5,728 images/s, which saves 69 microseconds per image of 224 px; 72 s / 69 us are 1.05 million images. A slower GPU
is reckoned to save more time per image, and so to need fewer images."""


def earns_compiling(num_images: float, side: float) -> bool:
    """Whether a run on a GPU trains long enough to compile. num_images: of the whole run, all processes together,
    `inf` for a run without end. side: width in pixels of its first images."""
    return num_images * side**2 >= EARNED_PIXELS


def reason(num_images: float, side: float) -> str:
    """The numbers behind `earns_compiling`, for the user."""
    return (
        f"the run trains {_thousands(num_images)} images of {side:.0f} px, and compiling pays from "
        f"{_thousands(EARNED_PIXELS / side**2)} on"
    )


def forbids_graph(
    *, device: str, num_processes: int, gradient_checkpointing: bool, compile: bool | Literal["auto"], compile_mode: str
) -> bool:
    """Whether cuda_graph=auto is off. A compile mode that makes its own graphs forbids it, also while compile=auto is
    undecided."""
    own_graphs = bool(compile) and compile_mode in WITHOUT_GRAPHS
    return device != "cuda" or num_processes > 1 or gradient_checkpointing or own_graphs


def _thousands(num_images: float) -> str:
    return f"{num_images:,.0f}" if num_images != float("inf") else "endlessly many"


class CompiledForward:
    """Compiles `net` in place for forward passes that record gradients; others, such as validation, run uncompiled.

    This object replaces `net._compiled_call_impl`, which copies, pickles and the state_dict of the network do not
    contain. Compiling validation would save a few seconds per epoch, but its first batch would compile where nothing
    catches an error.

    In modes with CUDA graphs, gradients are in the graphs' memory, which the next forward frees. Gradients of an
    earlier micro-batch are therefore moved before the next forward. Source:
    https://github.com/pytorch/pytorch/issues/96693, wrong accumulated gradients.
    """

    def __init__(self, net: nn.Module, *, mode: str, fullgraph: bool) -> None:
        net.compile(mode=mode, fullgraph=fullgraph, dynamic=False)
        self._net = net
        self._compiled: Any = net._compiled_call_impl
        self._makes_graphs = mode in WITHOUT_GRAPHS
        self._parameters = list(net.parameters()) if self._makes_graphs else []
        net._compiled_call_impl = self

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._net._call_impl(*args, **options)
        move_gradients(self._parameters)
        return self._compiled(*args, **options)

    def attempt(self, images: Tensor) -> None:
        """Run a forward and backward pass, which compiles for the shape of `images`; buffers, gradients and random
        state do not change. In modes with CUDA graphs two, because torch records its graphs in the second."""
        before = Rollback(self._net.buffers())
        gradients = [None if tensor.grad is None else tensor.grad.clone() for tensor in self._net.parameters()]
        try:
            # Otherwise torch silently runs uncompiled beyond its limit.
            with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
                for _ in range(2 if self._makes_graphs else 1):
                    self._net.zero_grad()
                    self._net(images).float().sum().backward()
            if images.is_cuda:
                torch.cuda.synchronize()
        finally:
            before.restore()
            for parameter, gradient in zip(self._net.parameters(), gradients, strict=True):
                parameter.grad = gradient

    def release(self) -> None:
        """Return to the uncompiled network, and release torch's CUDA graphs."""
        self._net._compiled_call_impl = None
        torch.compiler.reset()
        torch.cuda.empty_cache()
