"""The GPU memory that a training step needs, computed before a run by tensors that have shapes but no data."""

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
"""torch's allocator rounds each tensor up to so many bytes (kMinBlockSize in c10/cuda/CUDACachingAllocator.cpp)."""
_LARGE = 256
"""Images of the second step that is computed, at the least: there activations decide, whatever the optimizer needs."""
_FLOAT32_ON_GPUS = ("layer_norm", "group_norm", "softmax", "log_softmax", "norm")
"""Operations that autocast computes in float32 on a GPU but not on a CPU, and whose results networks keep (torch's
documentation, "Automatic Mixed Precision", CUDA Ops that can autocast to float32)."""


@dataclass(frozen=True)
class StepMemory:
    """num_images: that are in the network at once. num_bytes: that these need. bytes_per_image: of each one more."""

    num_images: int
    num_bytes: int
    bytes_per_image: float

    def most_images(self, room_bytes: float) -> int:
        """The largest number of images at once that needs no more than `room_bytes`; 0 for none."""
        return max(0, int(self.num_images + (room_bytes - self.num_bytes) / self.bytes_per_image))


@dataclass(frozen=True, kw_only=True)
class StepSetting:
    """weights: dtype of the parameters; None for that which they have. autocast: None for none."""

    image_size: int
    weights: torch.dtype | None = None
    autocast: torch.dtype | None = None
    channels_last: bool = False
    gradient_checkpointing: bool = False
    label_smoothing: float = 0.0


def step_memory(
    net: nn.Module,
    optimizer: Callable[[nn.Module], Optimizer],
    how: StepSetting,
    *,
    batch_size: int,
    micro_batch_size: int | None = None,
) -> StepMemory:
    """The most bytes of tensors that are alive at once in the second step of a run, when the optimizer has its state.

    optimizer: makes that of a network. The network's shapes are all that counts: it may be on the device `meta`.
    A lower bound for an uncompiled run: what cuDNN takes as workspace, what lies idle between torch's blocks, the CUDA
    context, batches on their way, averaged weights, the gradients' copies of several processes, and validation come on
    top and are not known here. A compiled network keeps less for its backward, a CUDA graph takes more.

    Nothing is computed, and neither network nor random state change. Raises what the network or the optimizer raises
    where it needs values, as those with data-dependent control flow do.
    """
    part = micro_batch_size or batch_size
    larger = max(2 * part, _LARGE)
    sizes = [(batch_size, part), (max(batch_size, larger), larger)]
    with torch.random.fork_rng(devices=[]):
        first, second = _peaks(net, optimizer, how, sizes)
    return StepMemory(part, first, (second - first) / (larger - part))


def _peaks(
    net: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer], how: StepSetting, sizes: list[tuple[int, int]]
) -> list[int]:
    """Bytes of a step of each (images, images at once)."""
    with FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True), _Alive() as alive:
        fake = _fake(net, how).train()
        optimizer = make_optimizer(fake)
        for parameter in fake.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        optimizer.zero_grad()
        return [_peak(fake, optimizer, how, alive, *size) for size in sizes]


def _peak(
    net: nn.Module, optimizer: Optimizer, how: StepSetting, alive: "_Alive", num_images: int, at_once: int
) -> int:
    """The batch is on the device as a whole; with its second part all has been seen that happens."""
    dtype = how.autocast or next(net.parameters()).dtype
    layout = torch.channels_last if how.channels_last else torch.contiguous_format
    images = torch.empty(num_images, 3, how.image_size, how.image_size, dtype=dtype).to(memory_format=layout)
    labels = torch.zeros(num_images, dtype=torch.int64)
    alive.peak = alive.now
    for begin in range(0, num_images, at_once)[:2]:
        part = slice(begin, begin + at_once)
        with _as_on_gpu(how.autocast):
            logits = net(images[part])
        losses = cross_entropy(logits.float(), labels[part], reduction="none", label_smoothing=how.label_smoothing)
        (losses.sum() / num_images).backward()
        del logits, losses
    optimizer.step()
    optimizer.zero_grad()
    return alive.peak


def _fake(net: nn.Module, how: StepSetting) -> nn.Module:
    """A copy of the network with tensors that have no data."""

    def fake(tensor: Tensor) -> Tensor:
        dtype = how.weights if how.weights is not None and tensor.is_floating_point() else tensor.dtype
        channels_last = how.channels_last and tensor.ndim == 4
        layout = torch.channels_last if channels_last else torch.contiguous_format
        return torch.empty(tensor.shape, dtype=dtype, device="cpu", memory_format=layout)

    known: dict[int, Any] = {id(p): nn.Parameter(fake(p), p.requires_grad) for p in net.parameters()}
    known |= {id(buffer): fake(buffer) for buffer in net.buffers()}
    copied = copy.deepcopy(net, known)
    if how.gradient_checkpointing:
        enable: Any = copied.set_grad_checkpointing
        enable(True)
    return copied


class _Alive(TorchDispatchMode):
    """now: bytes of the tensors that live; peak: the most since it was set."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._note(tensor.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._known:
            return
        self._known.add(key)
        num_bytes = -(-storage.nbytes() // _BLOCK) * _BLOCK
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, num_bytes)

    def _gone(self, key: int, num_bytes: int) -> None:
        self._known.discard(key)
        self.now -= num_bytes


@contextmanager
def _as_on_gpu(dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast as a GPU has it, for tensors that are on the CPU."""
    with ExitStack() as stack:
        if dtype is not None:
            stack.enter_context(torch.autocast("cpu", dtype, cache_enabled=False))
            stack.enter_context(_Float32())
        yield


class _Float32(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _FLOAT32_ON_GPUS:
            args = [arg.float() if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args]
        return func(*args, **(kwargs or {}))
