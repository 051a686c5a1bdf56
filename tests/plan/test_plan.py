"""Plans of runs, compared with numbers from the recipes' sources."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from timm.scheduler import CosineLRScheduler

from imagenet_opt.errors import ConfigError
from imagenet_opt.evaluate.network import CONVENTIONS
from imagenet_opt.model.network import build_network
from imagenet_opt.model.optimizer import build_optimizer
from imagenet_opt.plan.plan import IMAGENET, Plan, make_plan, table
from tests.conftest import composed

REPOSITORY = Path(__file__).parents[2]
FFCV = {16: 12, 88: 71}
"""Epochs of FFCV's recipes -> the first epoch of 192 pixels, counted from 0."""

PlanOf = Callable[[str], Plan]


@pytest.fixture(scope="module")
def plan_of() -> PlanOf:
    """The plan of a shipped recipe, made once."""
    return cache(lambda words: make_plan(composed(*f"experiment={words}".split()), IMAGENET))


@pytest.mark.slow
@pytest.mark.parametrize("num_epochs", [16, 88])
@pytest.mark.parametrize(("name", "peak", "steps"), [("rn18", 0.5, 1251), ("rn50", 1.7, 312)])
def test_ffcvs_recipes(plan_of: PlanOf, num_epochs: int, name: str, peak: float, steps: int) -> None:
    plan = plan_of(f"{name}_ffcv trainer.max_epochs={num_epochs}")
    first = FFCV[num_epochs]
    assert [(phase.first_epoch, phase.num_epochs, phase.image_size) for phase in plan.phases] == [
        (0, first, 160),
        (first, num_epochs - first, 192),
    ]
    assert plan.total_steps == steps * num_epochs == sum(phase.steps for phase in plan.phases)
    falling = [peak * (num_epochs - epoch) / (num_epochs - 2) for epoch in range(2, num_epochs)]
    rates = [peak * 1e-4, peak * (0.5 + 0.5e-4), *falling]
    assert plan.lr == pytest.approx(rates, rel=1e-5)


COSINE = [1.024 * (1 + math.cos(math.pi * (epoch - 8) / 82)) for epoch in range(8, 90)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lr", "size", "steps"),
    [
        ("rn50_tv1", [0.1] * 30 + [0.01] * 30 + [0.001] * 30, 224, 5004),  # torchvision's first recipe
        ("rn50_classic90", [0.256 * (epoch + 1) for epoch in range(8)] + COSINE, 224, 625),  # NVIDIA: staircase, cosine
        ("fixres", [0.008] * 30 + [0.0008] * 26, 384, 2502),  # 8e-3 for 512 images, a tenth after 30 epochs
    ],
)
def test_recipes_with_one_image_size(plan_of: PlanOf, name: str, lr: list[float], size: int, steps: int) -> None:
    plan = plan_of(name)
    assert plan.lr == pytest.approx(lr, rel=1e-6)
    assert [(phase.image_size, phase.num_epochs) for phase in plan.phases] == [(size, len(lr))]
    assert plan.total_steps == len(lr) * steps


@pytest.mark.slow
def test_mosaics_mild_recipe(plan_of: PlanOf) -> None:
    plan = plan_of("rn50_mild")
    rising = [2.048 * (epoch * 625 + 1) / 5001 for epoch in range(8)]
    falling = [1.024 * (1 + math.cos(math.pi * (epoch - 8) / 28)) for epoch in range(8, 36)]
    assert plan.lr == pytest.approx(rising + falling) and plan.total_steps == 36 * 625
    sizes = [phase.image_size for phase in plan.phases for _ in range(phase.num_epochs)]
    exact = [176 * min(1.0, 0.5 + 0.5 * max(0.0, epoch / 36 - 0.4) / 0.4) for epoch in range(36)]
    assert max(abs(size - side) for size, side in zip(sizes, exact, strict=True)) < 16
    assert (sizes[0], sizes[28], sizes[29]) == (96, 160, 176)


@pytest.mark.parametrize(("name", "size", "num_epochs", "peak"), [("a3", 160, 100, 8e-3), ("a2", 224, 300, 5e-3)])
def test_timms_recipes(plan_of: PlanOf, name: str, size: int, num_epochs: int, peak: float) -> None:
    """timm's own scheduler, with the arguments of its training script: --warmup-lr 1e-4 --min-lr 1e-6."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    theirs = CosineLRScheduler(
        optimizer, t_initial=num_epochs, lr_min=1e-6, warmup_t=5, warmup_lr_init=1e-4, cycle_limit=1
    )
    plan = plan_of(f"rn50_{name}")
    assert plan.lr == pytest.approx([theirs._get_lr(epoch)[0] for epoch in range(num_epochs)])
    assert plan.total_steps == num_epochs * 625 and [phase.image_size for phase in plan.phases] == [size]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "one_dimensional"),
    [("rn50_ffcv", 9), ("rn50_classic90", 9), ("rn50_mild", 107), ("rn50_a2", 0), ("rn50_tv2", 1)],
)
def test_the_tensors_that_recipes_decay(name: str, one_dimensional: int) -> None:
    """54 matrices and kernels of ResNet-50 are decayed by all. Where names with "bn" are left out, four batch norms of
    shortcuts and the bias of the head are not; without an exception all 53 batch norms and this bias are decayed. timm
    leaves out all of them, torchvision's second recipe the batch norms."""
    config = composed(f"experiment={name}")
    with torch.device("meta"):
        net = build_network("resnet50", num_classes=1000)
    options = OmegaConf.to_container(config.optimizer) | {"global_batch": 2048, "device": torch.device("cpu")}
    decayed = [group for group in build_optimizer(net, **options).param_groups if group["weight_decay"]]
    (group,) = decayed
    shapes = [parameter.ndim for parameter in group["params"]]
    assert (len(shapes) - shapes.count(1), shapes.count(1)) == (54, one_dimensional)
    assert group["weight_decay"] == {"rn50_ffcv": 1e-4, "rn50_a2": 0.02, "rn50_tv2": 2e-5}.get(name, 2**-15)


@pytest.mark.parametrize(
    ("words", "loader_rate", "steps", "seconds"),
    [
        ("", None, 64, 6400 / 200 + 300 / 200 / 3),  # a validation image costs a third of a training image
        ("", 100, 64, 6700 / 100),
        ("max_epochs=4", None, 256, 4 * (6400 / 200 + 300 / 600)),
        ("max_epochs=4 check_val_every_n_epoch=3 val_check_interval=0.25", None, 256, 128 + 5 * 300 / 600),
        ("max_epochs=4 check_val_every_n_epoch=null val_check_interval=100", None, 256, 128 + 3 * 300 / 600),
        ("max_epochs=4 limit_val_batches=0.5 limit_train_batches=10", None, 40, 4 * (1000 / 200 + 150 / 600)),
        ("devices=4", None, 16, (6400 + 300 / 3) / 800),
        ("devices=4", 500, 16, 6700 / 500),  # 800 images/s of the GPUs, 2400 in validation
        ("devices=4 num_nodes=2", 500, 8, 6700 / 1000),
        ("devices=4 num_nodes=2", 2000, 8, 6400 / 1600 + 300 / 4000),
    ],
)
def test_hours_are_images_over_rates(words: str, loader_rate: float | None, steps: int, seconds: float) -> None:
    """Of epochs of 64 steps at 224 px, and of validations; several GPUs share the images."""
    fixed = ("trainer.max_epochs=1", "data.batch_size=100", "model.name=resnet18", "schedule.warmup_epochs=0")
    config = composed(*fixed, *(f"trainer.{word}" for word in words.split()))
    plan = make_plan(config, (6400, 300, 10), rate=200, loader_rate=loader_rate)
    assert (plan.total_steps, plan.hours * 3600) == (steps, pytest.approx(seconds))
    if not words:
        shown = table(plan, is_of_a10g=False)
        assert [row[-1] for row in shown.rows] == ["loader" if loader_rate else "GPU"]
        assert ("imagenet-opt pack" in str(shown.notes)) == bool(loader_rate)


def test_a_plan_ends_at_max_steps() -> None:
    recipe = "experiment=rn18_ffcv"  # 1251 steps an epoch, larger images from epoch 10 of 13 on
    plan = make_plan(composed(recipe, "trainer.max_steps=16000"), IMAGENET, rate=900)
    assert [(phase.num_epochs, phase.steps) for phase in plan.phases] == [(10, 12510), (3, 3490)]
    assert plan.total_steps == 16000 and len(plan.lr) == 13
    assert plan.hours == pytest.approx(sum(phase.hours for phase in plan.phases) + plan.validation_hours)
    early = make_plan(composed(recipe, "trainer.max_steps=100"), IMAGENET, rate=900)
    assert early.hours - early.validation_hours == pytest.approx(plan.phases[0].hours * 100 / 12510)
    assert early.validation_hours == pytest.approx(plan.validation_hours / 13), "of the last weights"
    seconds = f"{3600 * early.phases[0].hours:.2g} seconds"
    assert early.hours < 0.1 and table(early, is_of_a10g=True).rows[0][4] == seconds


@pytest.mark.slow
def test_docs_and_headers_have_the_recipes_as_they_are(plan_of: PlanOf) -> None:
    """A recipe without a recorded run must not look reproduced."""
    page = (REPOSITORY / "docs/recipes.md").read_text()
    names = [file.stem for file in (REPOSITORY / "conf/experiment").glob("*.yaml") if file.stem.startswith("rn")]
    lengths = {name: FFCV if name.endswith("_ffcv") else [None] for name in names}
    for name, num_epochs in [(name, num) for name, some in lengths.items() for num in some]:
        words = f"{name} trainer.max_epochs={num_epochs}" if num_epochs else name
        plan = plan_of(words)
        recipe, hours = SimpleNamespace(**{"gpus": None} | plan.recipe), f"{plan.hours:.1f}"
        start = f"| `{name}` | {recipe.published_top1} | `{recipe.evaluation}` | {len(plan.lr)} |"
        (row,) = [line for line in page.splitlines() if line.startswith(start)]
        assert row.endswith(f"| {recipe.reproduced or 'no'} |")
        assert f"| {hours} | {recipe.gpus or 'not known'}" in row
        header = (REPOSITORY / f"conf/experiment/{name}.yaml").read_text().partition("defaults:")[0]
        assert (f"{num_epochs}: {hours}" if num_epochs else f"plan for one A10G: {hours} hours.") in header
        assert num_epochs or f"Published: {recipe.published_top1} %" in header
        assert ("Not reproduced here." in header) == (recipe.reproduced is None)
        assert recipe.evaluation in CONVENTIONS and recipe.source and recipe.sigma > 0


def test_torchvisions_second_recipe(plan_of: PlanOf) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=595)
    theirs = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[5])
    rates = []
    for _ in range(600):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    plan = plan_of("rn50_tv2")
    assert plan.lr == pytest.approx(rates, abs=1e-9)
    assert plan.total_steps == 600 * 1251 and [phase.image_size for phase in plan.phases] == [176]


def test_a_recipe_of_a_user_needs_no_fact(plan_of: PlanOf) -> None:
    words = "cifar10 recipe={source:mine}"
    assert "Published top-1: none." in table(plan_of(words), is_of_a10g=True).sentences
    with pytest.raises(ConfigError, match=r"recipe.sgma.*sigma"):
        plan_of("rn50_a3 +recipe.sgma=1")
