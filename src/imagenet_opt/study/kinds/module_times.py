"""Where the time of a training step goes, beside where its FLOPs are, by kind of operation.

Source of the comparison: Ivanov et al., Data Movement Is All You Need, 2020, arXiv:2007.00072, table 1: in BERT
contractions, normalisations and element-wise operations have 99.8, 0.17 and 0.03 % of the FLOPs, and 61, 25.5 and
13.5 % of the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from imagenet_opt.measure.telemetry.torch_profile import GROUPS, Operation
from imagenet_opt.study.kinds.op_counter import Work


@dataclass(frozen=True)
class Part:
    """Share of one group of operations in a step. Its FLOP/s and bytes/s are None without a time or a count."""

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
        """None for copies, since operations also copy internally: that takes time, but its bytes are not counted."""
        if self.group == "copies" or not self.seconds or not self.num_bytes:
            return None
        return self.num_bytes / self.seconds / 1e9


def parts(operations: Sequence[Operation], work: Work) -> list[Part]:
    """The share of each group, in the order of GROUPS."""
    seconds: dict[str, float] = dict.fromkeys(GROUPS, 0.0)
    for operation in operations:
        seconds[operation.group] += operation.seconds
    whole, flops = sum(seconds.values()) or 1.0, work.flops.total() or 1
    return [
        Part(
            group=group,
            seconds=seconds[group],
            time_share=seconds[group] / whole,
            flops=work.flops[group],
            flop_share=work.flops[group] / flops,
            num_bytes=work.num_bytes[group],
        )
        for group in GROUPS
    ]
