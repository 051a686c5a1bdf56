"""Computes, before training, how much GPU memory a training step needs, using tensors with shapes but no data."""

import copy
import logging
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from imagenet_opt.config.build import device_of, largest_size, trained_network
from imagenet_opt.machine import GIB
from imagenet_opt.model.micro_batch import part_sizes
from imagenet_opt.model.network import frozen_parts
from imagenet_opt.model.optimizer import build_optimizer
from imagenet_opt.private_api import FakeTensorMode, TorchDispatchMode, tree_leaves
from imagenet_opt.probe.memory import SPARE, allowed_size

log = logging.getLogger(__name__)

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


@rank_zero_only
def log_need(config: DictConfig) -> None:
    """Log one line about the memory need of this configuration, as a warning if a step does not fit; nothing without
    a GPU."""
    if (card := gpu_bytes(config)) is not None and (verdict := judge_need(config, config.model.num_classes, card)):
        fits, text = verdict
        log.log(logging.INFO if fits else logging.WARNING, text)


def judge_need(config: DictConfig, num_classes: int, card_bytes: int | None) -> tuple[bool, str] | None:
    """Whether a step of the configuration fits, with a sentence; None if the need is unknown. card_bytes: memory of the
    GPU; None for a sentence about the need alone, with True."""
    batch = config.data.batch_size
    need = need_of(config, num_classes, batch, config.model.micro_batch_size)
    if need is None:
        return None
    at_once = f", {need.num_images} at once," if need.num_images < batch else ""
    text = f"a training step of {batch} images of {largest_size(config)} px{at_once} needs about "
    text += f"{need.num_bytes / GIB:.3g} GiB of GPU memory for its tensors"
    if card_bytes is None:
        return True, text
    text += f"; the GPU has {card_bytes / GIB:.3g} GiB"
    most = need.most_images((1 - SPARE) * card_bytes)
    if most >= need.num_images:
        return True, text
    text += f", of which {100 * SPARE:.0f} % should stay free; a compiled step needs less. "
    if not most:
        text += "Not even one image fits: lower data.image_size, choose a smaller model.name, or set "
        return False, f"{text}callbacks.acceleration.gradient_checkpointing=true"
    text += f"About {allowed_size(most)} images fit at once: lower data.batch_size, or set "
    return False, f"{text}model.micro_batch_size={allowed_size(most)}, which changes neither batch nor schedule"


def gpu_bytes(config: DictConfig) -> int | None:
    """Total memory of the GPU as torch reports it; None on a CPU."""
    device = device_of(config)
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def need_of(
    config: DictConfig, num_classes: int, batch_size: int, micro_batch_size: int | None = None
) -> StepMemory | None:
    """Memory of one process at the largest image size; None if it cannot be computed."""
    options: Any = OmegaConf.to_container(config.optimizer, resolve=True)
    options |= {"fused": False, "global_batch": batch_size, "device": torch.device("cpu")}  # the state is the same
    acceleration = config.callbacks.get("acceleration") or {}
    weights, autocast = _dtypes(str(config.trainer.precision))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = trained_network(config, num_classes)
            frozen_parts(net, config.model.freeze)
            return step_memory(
                net,
                partial(build_optimizer, **options),
                image_size=largest_size(config),
                batch_size=batch_size,
                at_once=part_sizes(batch_size, micro_batch_size)[0],
                weights=weights,
                autocast=autocast,
                channels_last=acceleration.get("channels_last", False),
                gradient_checkpointing=acceleration.get("gradient_checkpointing", False),
                label_smoothing=config.model.label_smoothing,
            )
    except Exception as error:  # any network or optimizer may raise
        log.debug(f"the memory of a step is unknown before it runs: {type(error).__name__}: {error}")
        return None


def _dtypes(precision: str) -> tuple[torch.dtype | None, torch.dtype | None]:
    """Dtypes of the weights and of autocast on a GPU, by Lightning's precision or `mixed`. Both 16-bit types take
    the same memory."""
    if precision.startswith("64"):
        return torch.float64, None
    if "16" not in precision and precision != "mixed":
        return None, None
    return (torch.bfloat16, None) if precision.endswith("true") else (None, torch.bfloat16)


def step_memory(
    net: nn.Module,
    make_optimizer: Callable[[nn.Module], Optimizer],
    *,
    image_size: int,
    batch_size: int,
    at_once: int | None = None,
    weights: torch.dtype | None = None,
    autocast: torch.dtype | None = None,
    channels_last: bool = False,
    gradient_checkpointing: bool = False,
    label_smoothing: float = 0.0,
) -> StepMemory:
    """Peak bytes of all tensors in the second step of a run, when the optimizer has its state.

    net: only its shapes matter, so it may be on the device `meta`. at_once: images in the network at once, the whole
    batch by default. weights: dtype of the parameters; None to keep it. autocast: dtype of autocast; None for none.
    The result is a lower bound for an uncompiled run, without cuDNN's workspace, unused parts of torch's blocks, the
    CUDA context, prefetched batches, averaged weights, DDP's copies of gradients, and validation. A compiled network
    keeps less for its backward; a CUDA graph takes more. Nothing is computed, and the network and the random state do
    not change. Errors of the network or the optimizer pass through, for example if they need values for control flow.
    """
    layout = torch.channels_last if channels_last else torch.contiguous_format
    part = at_once or batch_size
    larger = max(2 * part, _LARGE)

    def peak(num_images: int, at_once: int) -> int:
        """The whole batch is on the device; parts after the second need no more memory."""
        dtype = autocast or next(fake.parameters()).dtype
        images = torch.empty(num_images, 3, image_size, image_size, dtype=dtype).to(memory_format=layout)
        labels = torch.zeros(num_images, dtype=torch.int64)
        alive.peak = alive.now
        for begin in range(0, num_images, at_once)[:2]:
            some = slice(begin, begin + at_once)
            with torch.autocast("cpu", autocast, autocast is not None, cache_enabled=False), _Float32():
                logits = fake(images[some])
            losses = cross_entropy(logits.float(), labels[some], reduction="none", label_smoothing=label_smoothing)
            (losses.sum() / num_images).backward()
            del logits, losses
        optimizer.step()
        optimizer.zero_grad()
        return int(alive.peak)

    shapes = FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True)
    with torch.random.fork_rng(devices=[]), shapes, _Alive() as alive:
        fake = _fake(net, weights, layout).train()
        if gradient_checkpointing:
            fake.set_grad_checkpointing(True)  # type: ignore[operator]
        optimizer = make_optimizer(fake)
        for parameter in fake.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        optimizer.zero_grad()
        first, second = peak(batch_size, part), peak(max(batch_size, larger), larger)
    return StepMemory(part, first, (second - first) / (larger - part))


def _fake(net: nn.Module, weights: torch.dtype | None, layout: torch.memory_format) -> nn.Module:
    """A copy of the network whose tensors have no data."""

    def fake(tensor: Tensor) -> Tensor:
        dtype = weights if weights is not None and tensor.is_floating_point() else tensor.dtype
        memory_format = layout if tensor.ndim == 4 else torch.contiguous_format
        return torch.empty(tensor.shape, dtype=dtype, device="cpu", memory_format=memory_format)

    memo: dict[int, Any] = {id(p): nn.Parameter(fake(p), p.requires_grad) for p in net.parameters()}
    return copy.deepcopy(net, memo | {id(buffer): fake(buffer) for buffer in net.buffers()})


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
