"""Counts the FLOPs and bytes of a training step while it runs, on any device."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from imagenet_opt.measure.telemetry.torch_profile import GROUPS, group_of


@dataclass(frozen=True)
class Work:
    """Work of a step.

    flops: counted by torch for contractions; 0 for copies; for others the number of elements read or written, whichever
    is larger. num_bytes: minimum traffic, if each operation reads its inputs and writes its outputs once.
    """

    flops: Counter[str]
    num_bytes: Counter[str]


def counted_work(forward_backward: Callable[[], object], update: Callable[[], object]) -> Work:
    """FLOPs and bytes by group. Calls each function once. update: the optimizer's step."""
    flops, traffic, of_update = FlopCounterMode(display=False), Traffic(), Traffic()
    with flops, traffic:
        forward_backward()
    with of_update:
        update()
    elements = traffic.num_elements
    others = [group for group in GROUPS if group not in ("contraction", "copies")]
    work = Work(Counter({group: elements[group] for group in others}), traffic.num_bytes)
    for operation, count in flops.get_flop_counts()["Global"].items():
        work.flops[group_of(str(operation))] += count
    work.flops["optimizer"] += of_update.num_elements.total()
    work.num_bytes["optimizer"] += of_update.num_bytes.total()
    return work


class Traffic(TorchDispatchMode):
    """Counts the bytes and elements that operations read and write, by group. Views and unfilled memory do not
    count."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes: Counter[str] = Counter()
        self.num_elements: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if not func.is_view and not name.startswith(_UNMOVED):
            read, written = _moved(func, name, args, kwargs or {}, out)
            group = group_of(str(func))
            self.num_bytes[group] += sum(map(_size, [*read, *written]))
            self.num_elements[group] += max(_elements(read), _elements(written))
        return out


_UNMOVED = ("empty", "new_empty", "_unsafe_view", "_reshape_alias", "detach", "lift", "resize", "set_", "_local_scalar")
_WRITE_ONLY = re.compile(r"^(copy_|fill_|zero_|bernoulli_|.*_like)$")
"""What these are called on is only written, or only looked at."""


def _moved(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors that are read, and tensors that are written; a tensor changed in place is in both."""
    given = dict(zip([argument.name for argument in func._schema.arguments], args, strict=False)) | kwargs
    changed = [
        given[a.name] for a in func._schema.arguments if a.name in given and a.alias_info and a.alias_info.is_write
    ]
    read = _tensors(list(given.values())[1:] if _WRITE_ONLY.match(name) else list(given.values()))
    return read, _tensors([changed, out])


def _tensors(values: Any) -> list[Tensor]:
    """All tensors in a nested structure, each once."""
    return list({id(leaf): leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}.values())


def _size(tensor: Tensor) -> int:
    """Bytes of a tensor in memory; dimensions with stride 0 repeat the same bytes and count once."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
