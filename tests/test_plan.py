"""What a run will do and cost: against numbers written out from the recipes' sources."""

from pathlib import Path

import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.evaluate import CONVENTIONS
from imagenet_opt.plan import A10G_RATE, IMAGENET, make_plan, tables
from tests.conftest import composed

REPOSITORY = Path(__file__).parents[1]
FFCV = {16: 12, 24: 19, 32: 25, 40: 32, 56: 45, 88: 71}
"""Epochs of FFCV's recipes -> the first epoch of 192 pixels, counted from 0."""


@pytest.mark.parametrize("num_epochs", FFCV)
def test_ffcvs_recipes_for_resnet18(num_epochs: int) -> None:
    plan = make_plan(composed(f"experiment=rn18_ffcv{num_epochs}"), IMAGENET, rate=900, loader_rate=None)
    first = FFCV[num_epochs]
    assert [(phase.first_epoch, phase.num_epochs, phase.image_size) for phase in plan.phases] == [
        (0, first, 160),
        (first, num_epochs - first, 192),
    ]
    assert plan.total_steps == 1251 * num_epochs == sum(phase.steps for phase in plan.phases)
    falling = [0.5 * (num_epochs - epoch) / (num_epochs - 2) for epoch in range(2, num_epochs)]
    rates = [0.5 * 1e-4, 0.5 * (0.5 + 0.5e-4), *falling]
    assert plan.lr == pytest.approx(rates, rel=1e-5)


def test_torchvisions_first_recipe() -> None:
    plan = make_plan(composed("experiment=rn50_tv1"), IMAGENET, rate=900, loader_rate=None)
    assert plan.lr == pytest.approx([0.1] * 30 + [0.01] * 30 + [0.001] * 30)
    assert [(phase.image_size, phase.num_epochs) for phase in plan.phases] == [(224, 90)]
    assert plan.total_steps == 90 * 5004


def test_mlperfs_recipe() -> None:
    plan = make_plan(composed("experiment=rn50_mlperf"), IMAGENET, rate=900, loader_rate=None)
    assert plan.total_steps == 37 * 3140
    expected = [0, 1.5, *(1e-4 + (3 - 1e-4) * (1 - (epoch - 2) / 35) ** 2 for epoch in range(2, 37))]
    assert plan.lr == pytest.approx(expected, rel=1e-6)


def test_hours_are_images_over_rates() -> None:
    """One epoch of 64 steps at 224 px, and a validation pass of a third of a training image's cost each."""
    config = composed("trainer.max_epochs=1", "data.batch_size=100", "model=resnet18", "schedule.warmup_epochs=0")
    plan = make_plan(config, (6400, 300, 10), rate=200, loader_rate=None)
    assert plan.gpu_hours * 3600 == pytest.approx(6400 / 200 + 300 / 200 / 3)
    slow = make_plan(config, (6400, 300, 10), rate=200, loader_rate=100)
    assert slow.phases[0].hours * 3600 == pytest.approx(6400 / 100)
    assert slow.phases[0].images_per_second_needed == pytest.approx(200)
    phases = tables(slow, is_estimate=False, loader_rate=100, price_per_hour=None)[1]
    assert [row[-1] for row in phases.rows] == ["loader"]


def test_smaller_images_need_a_faster_loader() -> None:
    small = composed("data.image_size=160", "trainer.max_epochs=1")
    assert make_plan(small, IMAGENET, rate=900, loader_rate=None).phases[0].images_per_second_needed == pytest.approx(
        1760, rel=0.01
    )
    estimate = make_plan(composed("trainer.max_epochs=1"), IMAGENET, rate=None, loader_rate=None)
    assert estimate.phases[0].images_per_second_needed == pytest.approx(A10G_RATE, rel=0.01)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["trainer.max_epochs=-1"], "trainer.max_epochs=-1 gives no plan"),
        (["data.batch_size=auto"], "data.batch_size=auto gives no plan; set a number"),
        (["data.batch_size=2000000"], "data.batch_size=2000000 is larger than the 1281167"),
        (["model.num_classes=10"], "the data has 1000 classes, the network only 10"),
    ],
)
def test_runs_without_a_plan_are_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_plan(composed(*overrides), IMAGENET, rate=None, loader_rate=None)


def test_the_docs_have_the_recipes_as_they_are() -> None:
    """A recipe without a recorded run must not look reproduced."""
    page = (REPOSITORY / "docs/recipes.md").read_text()
    recipes = [file.stem for file in (REPOSITORY / "conf/experiment").glob("*.yaml") if file.stem.startswith("rn")]
    for name in recipes:
        config = composed(f"experiment={name}")
        recipe = config.recipe
        start = f"| `{name}` | {recipe.published_top1} | `{recipe.evaluation}` | {config.trainer.max_epochs} |"
        (row,) = [line for line in page.splitlines() if line.startswith(start)]
        assert row.endswith(f"| {recipe.reproduced or 'no'} |")
        hours = make_plan(config, IMAGENET, rate=None, loader_rate=None).gpu_hours
        assert f"| {hours:.1f} |" in row
        assert recipe.evaluation in CONVENTIONS and recipe.source and recipe.sigma > 0
