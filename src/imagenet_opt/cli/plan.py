"""`imagenet-opt plan`: what a run will do and cost, before it starts."""

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from imagenet_opt.cli.arguments import Parser, between, new_file, write_outputs
from imagenet_opt.config.overrides import key_of, last_value
from imagenet_opt.errors import ConfigError

HELP = """Show what a run will do and cost before it starts: phases, learning rates, rates, hours, published accuracy.

imagenet-opt plan experiment=rn18_ffcv
imagenet-opt plan experiment=rn50_tv1 data.root=/fsx/imagenet --rate 850 --loader-rate 1100 --price-per-hour 1.21
imagenet-opt plan experiment=rn18_ffcv trainer.max_epochs=88 --json plan.json
imagenet-opt plan --budget 25 --price-per-hour 0.50      the recipes that $25 pay for, by published accuracy

  --rate R            images/s that one GPU trains at 224 px with this network, or, with --budget, with ResNet-50
                      (default: 811 for ResNet-50, the only published rate of an A10G)
  --loader-rate R     images/s that the loaders of one machine deliver, which imagenet-opt doctor measures (default:
                      never the limit)
  --price-per-hour P  dollars per hour of one machine with all its GPUs
  --budget D          dollars: rank all recipes, or the lengths of experiment=NAME, that cost no more
  --json FILE         write the plan: phases, lr (at the first step of each epoch), total_steps, hours, num_gpus,
                      num_machines, price (in dollars; null without --price-per-hour), published_top1, reproduced. With
                      --budget: words, published_top1, evaluation, hours and price of all recipes, the best first

Any override of train.py may be added. Without data.root, the plan is for ImageNet's 1,281,167 training images. Nothing
is trained. Hours and dollars are those of all GPUs of the run (trainer.devices, trainer.num_nodes), which are assumed
to scale perfectly. Smaller images need a faster loader: 900 images/s at 224 px are 1,760 at 160 px."""


def main(argv: list[str]) -> None:
    options = parse(argv)
    from imagenet_opt.config.compose import composed
    from imagenet_opt.config.dataset import check_folders, data_of
    from imagenet_opt.display.terminal_table import print_tables

    splits = () if last_value(options.overrides, "data.root") is None else ("train", "val")
    config = composed(tuple(options.overrides), partial(check_folders, splits=splits))
    from imagenet_opt.plan.plan import IMAGENET  # imports torch

    sizes = IMAGENET
    if config.data.get("root") or "root" not in config.data:
        data = data_of(config)
        train, val = data.open("train"), data.open("val")
        sizes = len(train), len(val), len(train.classes)
    table, facts = _of_run(config, sizes, options) if options.budget is None else _of_budget(sizes, options)
    print_tables([table])
    write_outputs(options, lambda: {"command": ["imagenet-opt", "plan", *argv], **facts})


def _of_run(config: Any, sizes: tuple[int, int, int], options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Table and facts of one run."""
    from imagenet_opt.plan.plan import make_plan, table

    plan = make_plan(config, sizes, rate=options.rate, loader_rate=options.loader_rate)
    price = options.price_per_hour and options.price_per_hour * plan.num_machines * plan.hours
    facts = {**asdict(plan), "price": price}
    facts |= {key: plan.recipe.get(key) for key in ("published_top1", "reproduced")}
    return table(plan, is_of_a10g=options.rate is None, price=price), facts


def _of_budget(sizes: tuple[int, int, int], options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Table of the recipes that fit, and facts of all recipes."""
    from imagenet_opt.plan.budget import offers, table

    rates = {"rate": options.rate, "loader_rate": options.loader_rate}
    ranked = offers(options.overrides, sizes, price_per_hour=options.price_per_hour, **rates)
    rows = [
        {"words": each.words, "published_top1": each.top1, "evaluation": each.plan.recipe["evaluation"]}
        | {"hours": each.plan.hours, "price": each.price}
        for each in ranked
    ]
    return table(ranked, options.budget, is_of_a10g=options.rate is None), {"budget": options.budget, "recipes": rows}


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("plan")
    for flag in ("--rate", "--loader-rate", "--price-per-hour", "--budget"):
        parser.add_argument(flag, type=between(0.001, 1_000_000_000))
    parser.add_argument("--json", type=new_file)
    options = parser.parse_intermixed_args(argv)
    if options.budget is not None:
        if last_value(options.overrides, "data") is None:
            options.overrides.append("data=folder")  # not the demo
        if options.price_per_hour is None:
            raise ConfigError("--budget needs --price-per-hour, the dollars for an hour of one machine, such as 0.50")
        for word in options.overrides:
            if key_of(word) in ("trainer.max_epochs", "trainer.max_steps"):
                raise ConfigError(
                    f"{word} does not go with --budget, which compares recipes of all lengths; leave out one"
                )
    return options
