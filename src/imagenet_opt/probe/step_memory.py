"""Computes the GPU memory of a training step before a run, using tensors with shapes but no data."""

import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_BLOCK = 512
"""torch's allocator rounds tensors up to a multiple of this many bytes (kMinBlockSize in
c10/cuda/CUDACachingAllocator.cpp)."""
_LARGE = 256
"""Least images of the second computed step, so that activations need more memory than the optimizer."""
_FLOAT32_ON_GPUS = ("layer_norm", "group_norm", "softmax", "log_softmax", "norm")
"""Operations that autocast computes in float32 on a GPU but not on a CPU, and whose results networks keep (torch's
documentation, "Automatic Mixed Precision", CUDA Ops that can autocast to float32)."""


@dataclass(frozen=True)
class StepMemory:
    """num_images: images in the network at once. num_bytes: their memory. bytes_per_image: memory of each additional
    image."""

    num_images: int
    num_bytes: int
    bytes_per_image: float

    def most_images(self, room_bytes: float) -> int:
        """The largest number of images at once that needs at most `room_bytes`; 0 for none."""
        return max(0, int(self.num_images + (room_bytes - self.num_bytes) / self.bytes_per_image))


@dataclass(frozen=True, kw_only=True)
class StepSetting:
    """weights: dtype of the parameters; None to keep it. autocast: dtype of autocast; None for none."""

    image_size: int
    weights: torch.dtype | None = None
    autocast: torch.dtype | None = None
    channels_last: bool = False
    gradient_checkpointing: bool = False
    label_smoothing: float = 0.0


def step_memory(
    net: nn.Module,
    optimizer: Callable[[nn.Module], Optimizer],
    setting: StepSetting,
    *,
    batch_size: int,
    micro_batch_size: int | None = None,
) -> StepMemory:
    """Peak bytes of all tensors in the second step of a run, when the optimizer has its state.

    optimizer: creates the optimizer for a network. Only the network's shapes matter, so it may be on the device `meta`.
    The result is a lower bound for an uncompiled run, without cuDNN's workspace, unused parts of torch's blocks, the
    CUDA context, prefetched batches, averaged weights, DDP's copies of gradients, and validation. A compiled network
    keeps less for its backward; a CUDA graph takes more. Nothing is computed, and the network and the random state do
    not change. Errors of the network or the optimizer pass through, for example if they need values for control flow.
    """
    part = micro_batch_size or batch_size
    larger = max(2 * part, _LARGE)
    sizes = [(batch_size, part), (max(batch_size, larger), larger)]
    with torch.random.fork_rng(devices=[]):
        first, second = _peaks(net, optimizer, setting, sizes)
    return StepMemory(part, first, (second - first) / (larger - part))


def _peaks(
    net: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer], setting: StepSetting, sizes: list[tuple[int, int]]
) -> list[int]:
    """Peak bytes of a step for each (images, images at once)."""
    with FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True), _Alive() as alive:
        fake, optimizer = _after_a_step(net, make_optimizer, setting)
        return [_peak(fake, optimizer, setting, alive, *size) for size in sizes]


def _after_a_step(
    net: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer], setting: StepSetting
) -> tuple[nn.Module, Optimizer]:
    """A copy of the network without data, and its optimizer, which has its state."""
    fake = _fake(net, setting).train()
    optimizer = make_optimizer(fake)
    for parameter in fake.parameters():
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    optimizer.zero_grad()
    return fake, optimizer


def _peak(
    net: nn.Module, optimizer: Optimizer, setting: StepSetting, alive: "_Alive", num_images: int, at_once: int
) -> int:
    """Peak bytes of a step. The whole batch is on the device; parts after the second need no more memory."""
    dtype = setting.autocast or next(net.parameters()).dtype
    layout = torch.channels_last if setting.channels_last else torch.contiguous_format
    images = torch.empty(num_images, 3, setting.image_size, setting.image_size, dtype=dtype).to(memory_format=layout)
    labels = torch.zeros(num_images, dtype=torch.int64)
    alive.peak = alive.now
    for begin in range(0, num_images, at_once)[:2]:
        part = slice(begin, begin + at_once)
        with torch.autocast("cpu", setting.autocast, setting.autocast is not None, cache_enabled=False), _Float32():
            logits = net(images[part])
        losses = cross_entropy(logits.float(), labels[part], reduction="none", label_smoothing=setting.label_smoothing)
        (losses.sum() / num_images).backward()
        del logits, losses
    optimizer.step()
    optimizer.zero_grad()
    return alive.peak


def _fake(net: nn.Module, setting: StepSetting) -> nn.Module:
    """A copy of the network whose tensors have no data."""

    def fake(tensor: Tensor) -> Tensor:
        dtype = setting.weights if setting.weights is not None and tensor.is_floating_point() else tensor.dtype
        channels_last = setting.channels_last and tensor.ndim == 4
        layout = torch.channels_last if channels_last else torch.contiguous_format
        return torch.empty(tensor.shape, dtype=dtype, device="cpu", memory_format=layout)

    memo: dict[int, Any] = {id(p): nn.Parameter(fake(p), p.requires_grad) for p in net.parameters()}
    memo |= {id(buffer): fake(buffer) for buffer in net.buffers()}
    copied = copy.deepcopy(net, memo)
    if setting.gradient_checkpointing:
        copied.set_grad_checkpointing(True)  # type: ignore[operator]
    return copied


class _Alive(TorchDispatchMode):
    """Counts living tensors. now: their bytes; peak: the maximum since it was set."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and id(storage := tensor.untyped_storage()) not in self._storages:
                num_bytes = -(-storage.nbytes() // _BLOCK) * _BLOCK
                self._storages.add(id(storage))
                self.now += num_bytes
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._gone, id(storage), num_bytes)
        return result

    def _gone(self, key: int, num_bytes: int) -> None:
        self._storages.discard(key)
        self.now -= num_bytes


class _Float32(TorchFunctionMode):
    """Under autocast, computes in float32 the operations that autocast computes in float32 on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_autocast_enabled("cpu") and getattr(func, "__name__", "") in _FLOAT32_ON_GPUS:
            args = [arg.float() if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args]
        return func(*args, **(kwargs or {}))
