"""FLOPs and bytes of operations whose sizes can be worked out by hand."""

from collections import Counter

import pytest
import torch
from torch import nn

from imagenet_opt.measure.telemetry.torch_profile import GROUPS, Operation
from imagenet_opt.study.kinds.op_counter import Traffic, Work, counted_work, parts

FLOAT = 4


def moved(work) -> dict[str, int]:
    with Traffic() as traffic:
        work()
    return dict(traffic.num_bytes)


def test_every_operation_reads_its_inputs_and_writes_its_outputs_once() -> None:
    a, b = torch.ones(10, 20), torch.ones(20, 30)
    assert moved(lambda: a @ b) == {"contraction": FLOAT * (200 + 600 + 300)}
    assert moved(lambda: a + a) == {"element-wise": FLOAT * (200 + 200)}  # one tensor, read once
    assert moved(lambda: a.add_(torch.ones(10, 20))) == {
        "element-wise": FLOAT * (200 + 200 + 200),
        "copies": FLOAT * 200,  # ones
    }
    assert moved(lambda: a.copy_(a.clone())) == {"copies": FLOAT * 4 * 200}
    assert moved(lambda: a.bfloat16()) == {"copies": (FLOAT + 2) * 200}
    assert moved(lambda: a.zero_()) == {"copies": FLOAT * 200}
    assert moved(lambda: a.sum()) == {"normalisation": FLOAT * 201}


def test_views_move_nothing_and_repeated_elements_count_once() -> None:
    a = torch.ones(10, 20)
    assert moved(lambda: a.view(20, 10).t()[2:].detach().expand(3, 8, 20)) == {}
    assert moved(lambda: torch.empty_like(a)) == {}
    row = torch.ones(20)
    assert moved(lambda: a + row.expand(10, 20)) == {"element-wise": FLOAT * (200 + 20 + 200)}


def test_a_step_of_a_linear_layer() -> None:
    layer = nn.Linear(20, 30, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)
    images = torch.ones(10, 20)
    work = counted_work(lambda: layer(images).relu().sum().backward(), optimizer.step)
    assert work.flops["contraction"] == 2 * (2 * 10 * 20 * 30)  # forward, and the weight's gradient
    assert work.flops["optimizer"] == 2 * 600  # a weight and its gradient, read to be added
    assert work.num_bytes["optimizer"] == FLOAT * 3 * 600
    assert work.num_bytes["contraction"] >= FLOAT * 2 * (200 + 600 + 300)
    assert work.flops["element-wise"] >= 2 * 300


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_resnet_18_has_its_published_flops(dtype: torch.dtype | None) -> None:
    """1.82 G multiply-adds for 224 x 224 pixels (He et al., 2015, table 1: 1.8 G): a step has two FLOPs for each,
    three times, but for the gradient of the images."""
    import timm

    net = timm.create_model("resnet18").to("meta")
    images = torch.empty(1, 3, 224, 224, device="meta")

    def step() -> None:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            net(images).sum().backward()

    first = 2 * 64 * 3 * 49 * 112 * 112
    assert counted_work(step, lambda: None).flops["contraction"] == pytest.approx(6 * 1.82e9 - first, rel=0.01)


def test_each_group_has_its_share_and_its_rates() -> None:
    operations = [
        Operation("aten::conv2d", "contraction", seconds=0.5, num_calls=3),
        Operation("aten::mm", "contraction", seconds=0.1, num_calls=1),
        Operation("aten::relu", "element-wise", seconds=0.4, num_calls=2),
    ]
    work = Work(Counter({"contraction": 6_000_000_000_000, "element-wise": 2_000_000_000_000}),
                Counter({"element-wise": 8_000_000_000, "copies": 1_000}))  # fmt: skip
    by_group = {part.group: part for part in parts(operations, work)}
    assert tuple(by_group) == GROUPS
    contraction, elementwise, copies = by_group["contraction"], by_group["element-wise"], by_group["copies"]
    assert (contraction.seconds, contraction.time_share, contraction.flop_share) == pytest.approx((0.6, 0.6, 0.75))
    assert contraction.gflops_per_second == pytest.approx(10_000)
    assert contraction.gb_per_second is None
    assert elementwise.gb_per_second == pytest.approx(20)
    assert (copies.num_bytes, copies.gb_per_second) == (1000, None)
    assert (copies.seconds, copies.time_share, copies.gflops_per_second) == (0.0, 0.0, None)


def test_no_operations_have_no_shares() -> None:
    assert all(part.time_share == part.flop_share == 0 for part in parts([], Work(Counter(), Counter())))
