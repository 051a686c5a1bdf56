"""Finds operations that make the host wait for the device, such as `loss.item()`, and the lines that call them."""

import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

OnDevice = Callable[[Tensor], bool]
Rule = Callable[[OnDevice, tuple[Any, ...], Mapping[str, Any]], bool]
"""Whether the host waits in a call with these arguments."""
_LIBRARIES = sys.stdlib_module_names | {"torch", "lightning", "pytorch_lightning", "lightning_fabric"}
_OPTIMIZERS = ("torch.optim.", "timm.optim.")
_AVERAGING = "torch.optim.swa_utils"
"""In torch.optim, but not an optimizer."""


class Wait(NamedTuple):
    """operation: such as "item"; place: such as "step.py:12"; code: the stripped source line, "" without source."""

    operation: str
    place: str
    code: str


class HostSyncs(TorchFunctionMode):
    """While entered, counts in `counts` the operations of this thread that wait for the device.

    wait: called before each such operation, so that a simulated device can make the host wait.
    on_device: whether a tensor is on the device; by default all CUDA tensors, or all tensors on a machine without CUDA.
    For a tensor in RAM that counts as on the device, `.to(device)` counts only with the string "cpu" as the device,
    since `.to(self.device)` looks the same.

    The place is the innermost line outside of torch, Lightning and Python's library. Calls from the optimizers of torch
    and timm do not count: they read their step counts, which are on the host. Not detected: torch.cuda.synchronize and
    events, waits inside C++, repeats and ends of slices that are tensors, backward functions in autograd's threads (for
    CUDA tensors), copies with `non_blocking=True` of pageable memory, and operations in a compiled graph.
    Enter the mode after the workers of a loader have started, since forked processes would inherit the mode. Each call
    of torch from Python takes about 1 µs longer (on one core of 2026), each counted wait 6 µs; a compiled network is
    compiled once more when it first runs inside the mode.
    """

    def __init__(self, wait: Callable[[], None] = lambda: None, on_device: OnDevice | None = None) -> None:
        super().__init__()
        self.counts: Counter[Wait] = Counter()
        self._wait = wait
        has_cuda = torch.cuda.is_available()
        self._on_device = on_device or (lambda tensor: tensor.is_cuda or not has_cuda)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _RULES:
            self._notice(func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)

    def _notice(self, func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        operation, rule = _RULES[func]
        if rule(self._on_device, args, options) and (place := _caller()):
            self.counts[Wait(operation, *place)] += 1
            self._wait()


def _caller() -> tuple[str, str] | None:
    """Place and code of the innermost line outside of libraries; None inside an optimizer."""
    frame = sys._getframe(1)
    while _module(frame) == __name__ and frame.f_back:
        frame = frame.f_back
    if f"{_module(frame)}.".startswith(_OPTIMIZERS) and _module(frame) != _AVERAGING:
        return None
    while _module(frame).partition(".")[0] in _LIBRARIES and frame.f_back:
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(file).name}:{line}", linecache.getline(file, line).strip()


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _reads(on_device: OnDevice, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    tensor = next((value for value in (*args, *options.values()) if isinstance(value, Tensor)), None)
    return tensor is not None and on_device(tensor)


def _where(on_device: OnDevice, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    return len(args) + len(options) == 1 and _reads(on_device, args, options)


def _to(on_device: OnDevice, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    tensor, *values = args
    leaves = any(_leaves(on_device, tensor, value) for value in (*values, *options.values()))
    return leaves and _blocks(values, options)


def _blocks(values: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a copy blocks: neither its option `non_blocking` nor a positional flag is True."""
    return not options.get("non_blocking") and not any(value is True for value in values)


def _leaves(on_device: OnDevice, tensor: Tensor, target: Any) -> bool:
    """Whether the tensor is copied from the device to the host or back."""
    if isinstance(target, Tensor):
        return on_device(target) != on_device(tensor)
    if tensor.is_cpu and on_device(tensor):
        return isinstance(target, str) and target == "cpu"
    if isinstance(target, bool) or not isinstance(target, (str, int, torch.device)):
        return False
    return (torch.device(target).type == "cpu") == on_device(tensor)


def _cuda(on_device: OnDevice, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    return _blocks(args[1:], options) and not on_device(args[0])


def _copy(on_device: OnDevice, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    target, *values = (*args, *options.values())
    crosses = any(isinstance(source, Tensor) and on_device(source) != on_device(target) for source in values)
    return crosses and _blocks(values, options)


def _index(on_device: OnDevice, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """A mask, whose number of elements is read, or a single index on the device, as in images[i]."""
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    tensors = [part for part in parts if isinstance(part, Tensor) and on_device(part)]
    return any(tensor.dtype in (torch.bool, torch.uint8) or not tensor.dim() for tensor in tensors)


def _put(on_device: OnDevice, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Like `_index`, except that filling a mask with a number needs no count."""
    return isinstance(args[2], Tensor) and _index(on_device, args, options)


def _named(rule: Rule, *names: str, of: Iterable[Any] = (Tensor,)) -> dict[Any, tuple[str, Rule]]:
    return {getattr(owner, name): (name, rule) for owner in of for name in names if hasattr(owner, name)}


_RULES: dict[Any, tuple[str, Rule]] = (
    _named(_reads, "item", "tolist", "cpu", "numpy", "__array__", "__repr__", "__format__", "__contains__")
    | _named(_reads, "__bool__", "__float__", "__int__", "__index__", "__complex__")
    | _named(_reads, "is_nonzero", "equal", "allclose", "nonzero", "argwhere", "masked_select", of=(Tensor, torch))
    | _named(_reads, "unique", "unique_consecutive", "bincount", of=(Tensor, torch))
    | _named(_where, "where", of=(torch,))
    | _named(_to, "to")
    | _named(_cuda, "cuda")
    | _named(_copy, "copy_")
    | _named(_index, "__getitem__")
    | _named(_put, "__setitem__")
)
