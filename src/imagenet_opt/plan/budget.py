"""Ranks the recipes of published accuracy that a budget pays for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig

from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import config_folder, last_value
from imagenet_opt.display.table import Column, Table
from imagenet_opt.errors import ConfigError
from imagenet_opt.plan.plan import A10G_RATE, Plan, assumptions, evaluated_by, gpus, make_plan

_COLUMNS = (
    Column("recipe"),
    Column("top-1 %", "{:.2f}"),
    Column("eval="),
    Column("hours", "{:.1f}"),
    Column("$", "{:,.2f}"),
    Column("$ left", "{:,.2f}"),
)


@dataclass(frozen=True)
class Offer:
    """A recipe. words: overrides of train.py. price: of the run on all its GPUs, in dollars."""

    words: str
    plan: Plan
    price: float

    @property
    def top1(self) -> float:
        return float(self.plan.recipe["published_top1"])


def offers(
    overrides: Sequence[str],
    sizes: tuple[int, int, int],
    *,
    price_per_hour: float,
    rate: float | None = None,
    loader_rate: float | None = None,
) -> list[Offer]:
    """All recipes of published accuracy that train a whole network, the best first, and the cheapest of equal ones.

    overrides: an experiment= in them leaves the lengths of that recipe. price_per_hour: of a machine. rate: images/s of
    ResNet-50 at 224 px on a GPU; None for an A10G. sizes, loader_rate: as of make_plan. Raises ConfigError.
    """
    found = []
    for words, config in _recipes(overrides):
        plan = make_plan(config, sizes, rate_of_resnet50=A10G_RATE if rate is None else rate, loader_rate=loader_rate)
        found.append(Offer(words, plan, price_per_hour * plan.num_machines * plan.hours))
    if not found:
        name = last_value(overrides, "experiment")
        raise ConfigError(f"experiment={name} has no published accuracy; leave it out, and --budget ranks all recipes")
    return sorted(found, key=lambda offer: (-offer.top1, offer.price))


def _recipes(overrides: Sequence[str]) -> Iterator[tuple[str, DictConfig]]:
    """Words and configuration of each recipe, and of each of its lengths that has an accuracy."""
    typed = last_value(overrides, "experiment")
    names = [typed] if typed else sorted(file.stem for file in (config_folder() / "experiment").glob("*.yaml"))
    for name in names:
        config = composed((*overrides, f"experiment={name}"))
        if config.recipe is None or config.model.freeze is not None:
            continue
        if not config.recipe.get("published") and config.recipe.get("published_top1") is None:
            continue
        for num_epochs in config.recipe.get("published", [config.trainer.max_epochs]):
            length = f" trainer.max_epochs={num_epochs}" if "published" in config.recipe else ""
            of_length = config.copy()
            of_length.trainer.max_epochs = num_epochs
            yield f"experiment={name}{length}", of_length


def table(ranked: Sequence[Offer], budget: float, *, is_of_a10g: bool) -> Table:
    """The recipes that the budget, in dollars, pays for. is_of_a10g: whether the GPU's rate is A10G_RATE. Raises
    ConfigError if there is none."""
    if not (fitting := [offer for offer in ranked if offer.price <= budget]):
        least = min(ranked, key=lambda offer: offer.price)
        raise ConfigError(
            f"--budget {budget:g} pays for none of {len(ranked)} recipes; the cheapest, {least.words}, takes "
            f"{least.plan.hours:.1f} hours on {gpus(least.plan)} and ${least.price:,.2f}; raise --budget, or find a "
            "lower --price-per-hour"
        )
    best, *_ = fitting
    reproduced = [offer.words for offer in fitting if offer.plan.recipe["reproduced"]]
    finding = (
        f"Best published top-1 for ${budget:,.2f}: {best.words}, {best.top1} % "
        f"({evaluated_by(best.plan.recipe)}), {best.plan.hours:.1f} hours on {gpus(best.plan)}, ${best.price:,.2f}; "
        f"${budget - best.price:,.2f} are left."
    )
    notes = (
        f"Reproduced here: {', '.join(reproduced) or 'none'}. The accuracies are published for ImageNet and the "
        "unchanged recipes; those of another eval= are not comparable.",
        "The dollars pay for training and validation only, without starts, packing, storage, requests and what a "
        "preempted machine repeats.",
        f"imagenet-opt plan {best.words} lists how the recipe deviates from its source.",
        *assumptions(best.plan, is_of_a10g=is_of_a10g),
    )
    rows = tuple(
        (each.words, each.top1, each.plan.recipe["evaluation"], each.plan.hours, each.price, budget - each.price)
        for each in fitting
    )
    return Table(f"Recipes for ${budget:,.2f}", _COLUMNS, rows, notes, finding=finding)
