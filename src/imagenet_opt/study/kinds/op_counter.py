"""Counts the FLOPs and bytes of a training step while it runs, on any device, and compares them with its time."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from imagenet_opt.measure.telemetry.torch_profile import GROUPS, Operation, group_of


@dataclass(frozen=True)
class Work:
    """Work of a step.

    flops: counted by torch for contractions; 0 for copies; for others the larger of the elements read and the elements
    written. num_bytes: minimum traffic, if each operation reads its inputs and writes its outputs once.
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
"""Operations that do not read the values of their first argument."""


def _moved(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors that are read, and tensors that are written; a tensor that changes in place is in both lists."""
    values = dict(zip([argument.name for argument in func._schema.arguments], args, strict=False)) | kwargs
    changed = [
        values[a.name] for a in func._schema.arguments if a.name in values and a.alias_info and a.alias_info.is_write
    ]
    read = _tensors(list(values.values())[1 if _WRITE_ONLY.match(name) else 0 :])
    return read, _tensors([changed, out])


def _tensors(values: Any) -> list[Tensor]:
    """All tensors in a nested structure, each once."""
    return list({id(leaf): leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}.values())


def _size(tensor: Tensor) -> int:
    """Bytes of a tensor in memory; dimensions with stride 0 repeat the same bytes and count once."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


@dataclass(frozen=True)
class Part:
    """Share of one group of operations in a step. Its rates are None without a time or a count."""

    group: str
    seconds: float
    time_share: float
    flops: int
    flop_share: float
    num_bytes: int

    @property
    def gflops_per_second(self) -> float | None:
        return self.flops / self.seconds / 1e9 if self.seconds and self.flops else None

    @property
    def gb_per_second(self) -> float | None:
        """None for copies: the time includes copies within other operations, whose bytes are not counted."""
        if self.group == "copies" or not self.seconds or not self.num_bytes:
            return None
        return self.num_bytes / self.seconds / 1e9


def parts(operations: Sequence[Operation], work: Work) -> list[Part]:
    """The share of each group, in the order of GROUPS.

    Source of the comparison of time and FLOPs: Ivanov et al., Data Movement Is All You Need, 2020, arXiv:2007.00072,
    table 1: in BERT contractions, normalisations and element-wise operations have 99.8, 0.17 and 0.03 % of the FLOPs,
    and 61, 25.5 and 13.5 % of the time.
    """
    seconds: dict[str, float] = dict.fromkeys(GROUPS, 0.0)
    for operation in operations:
        seconds[operation.group] += operation.seconds
    total_seconds, total_flops = sum(seconds.values()) or 1.0, work.flops.total() or 1
    return [
        Part(
            group=group,
            seconds=seconds[group],
            time_share=seconds[group] / total_seconds,
            flops=work.flops[group],
            flop_share=work.flops[group] / total_flops,
            num_bytes=work.num_bytes[group],
        )
        for group in GROUPS
    ]
