"""`imagenet-opt plan`: what a run will do and cost, before it starts."""

import argparse
import json
from dataclasses import asdict

from imagenet_opt.cli.arguments import Parser, between, new_file

HELP = """Show what a run will do and cost before it starts: phases, learning rates, rates, hours, published accuracy.

imagenet-opt plan experiment=rn18_ffcv
imagenet-opt plan experiment=rn50_tv1 data.root=/fsx/imagenet --rate 850 --loader-rate 1100 --price-per-hour 1.21
imagenet-opt plan experiment=rn18_ffcv trainer.max_epochs=88 --json plan.json

  --rate R            images/s that one GPU trains at 224 px with this network (default: an estimate for an A10G)
  --loader-rate R     images/s that the loaders of one machine deliver, which imagenet-opt doctor measures (default:
                      never the limit)
  --price-per-hour P  dollars per hour of one machine with all its GPUs
  --json FILE         write the plan: phases, lr (at the first step of each epoch), total_steps, hours, num_gpus,
                      num_machines, price (in dollars; null without --price-per-hour), published_top1, reproduced

Any override of train.py may be added. Without data.root, the plan is for ImageNet's 1,281,167 training images. Nothing
is trained. Hours and dollars are those of all GPUs of the run (trainer.devices, trainer.num_nodes), which are assumed
to scale perfectly. Smaller images need a faster loader: 900 images/s at 224 px are 1,760 at 160 px."""


def main(argv: list[str]) -> None:
    options = parse(argv)
    from imagenet_opt.config.compose import composed
    from imagenet_opt.config.dataset import data_of
    from imagenet_opt.display.terminal_table import print_tables
    from imagenet_opt.plan.plan import IMAGENET, make_plan, table

    config, sizes = composed(tuple(options.overrides)), IMAGENET
    if config.data.get("root") or "root" not in config.data:
        data = data_of(config, or_demo=True)
        train, val = data.open("train"), data.open("val")
        sizes = len(train), len(val), len(train.classes)
    plan = make_plan(config, sizes, rate=options.rate, loader_rate=options.loader_rate)
    price = options.price_per_hour and options.price_per_hour * plan.num_machines * plan.hours
    print_tables([table(plan, is_estimate=options.rate is None, price=price)])
    if options.json is not None:
        facts = {"command": ["imagenet-opt", "plan", *argv], **asdict(plan), "price": price}
        facts |= {key: plan.recipe.get(key) for key in ("published_top1", "reproduced")}
        options.json.write_text(json.dumps(facts, indent=1))


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("plan")
    for flag in ("--rate", "--loader-rate", "--price-per-hour"):
        parser.add_argument(flag, type=between(0.001, 1_000_000_000))
    parser.add_argument("--json", type=new_file)
    return parser.parse_intermixed_args(argv)
