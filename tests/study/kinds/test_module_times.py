"""Shares of time beside shares of FLOPs."""

from collections import Counter

import pytest

from imagenet_opt.measure.telemetry.torch_profile import GROUPS, Operation
from imagenet_opt.study.kinds.module_times import parts
from imagenet_opt.study.kinds.op_counter import Work


def test_each_group_has_its_share_and_its_rates() -> None:
    operations = [
        Operation("aten::conv2d", "contraction", seconds=0.5, num_calls=3),
        Operation("aten::mm", "contraction", seconds=0.1, num_calls=1),
        Operation("aten::relu", "element-wise", seconds=0.4, num_calls=2),
    ]
    work = Work(Counter({"contraction": 6_000_000_000_000, "element-wise": 2_000_000_000_000}),
                Counter({"element-wise": 8_000_000_000, "copies": 1_000}))  # fmt: skip
    found = {part.group: part for part in parts(operations, work)}
    assert tuple(found) == GROUPS
    contraction, elementwise, copies = found["contraction"], found["element-wise"], found["copies"]
    assert (contraction.seconds, contraction.time_share, contraction.flop_share) == pytest.approx((0.6, 0.6, 0.75))
    assert contraction.gflops_per_second == pytest.approx(10_000)
    assert contraction.gb_per_second is None
    assert elementwise.gb_per_second == pytest.approx(20)
    assert (copies.num_bytes, copies.gb_per_second) == (1000, None)
    assert (copies.seconds, copies.time_share, copies.gflops_per_second) == (0.0, 0.0, None)


def test_nothing_measured_is_no_error() -> None:
    assert all(part.time_share == part.flop_share == 0 for part in parts([], Work(Counter(), Counter())))
