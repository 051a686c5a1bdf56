"""What a training step has to do: FLOPs and bytes, counted while it runs, on any device."""

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
    """Of a step. flops: of contractions counted by torch, of copies none, of the others one for each element read or
    written, whichever are more. num_bytes: what must be moved at least, each operation reading its inputs and writing
    its outputs once."""

    flops: Counter[str]
    num_bytes: Counter[str]


def counted_work(forward_backward: Callable[[], object], update: Callable[[], object]) -> Work:
    """FLOPs and bytes by group, each called once. update: the optimizer's step."""
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
    """Bytes that operations read and write, and elements, by group. Views and memory that nobody fills do not count."""

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
    """Tensors read and tensors written, one that is changed in place among both."""
    given = dict(zip([argument.name for argument in func._schema.arguments], args, strict=False)) | kwargs
    changed = [
        given[a.name] for a in func._schema.arguments if a.name in given and a.alias_info and a.alias_info.is_write
    ]
    read = _tensors(list(given.values())[1:] if _WRITE_ONLY.match(name) else list(given.values()))
    return read, _tensors([changed, out])


def _tensors(values: Any) -> list[Tensor]:
    """Each once."""
    return list({id(leaf): leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}.values())


def _size(tensor: Tensor) -> int:
    """Bytes; of what is repeated by a stride of 0, those that there are."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
