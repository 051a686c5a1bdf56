"""`imagenet-opt plan`: what a run will do and cost, before it starts."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from imagenet_opt.cli.arguments import Parser, between, new_file
from imagenet_opt.display.progress import announced
from imagenet_opt.errors import ConfigError
from imagenet_opt.object_storage import is_url

if TYPE_CHECKING:
    from omegaconf import DictConfig

HELP = """Show what a run will do and cost before it starts: phases, learning rates, rates, hours, published accuracy.

imagenet-opt plan experiment=rn18_ffcv
imagenet-opt plan experiment=rn50_tv1 data.root=/fsx/imagenet --rate 850 --loader-rate 1100 --price-per-hour 1.21
imagenet-opt plan experiment=rn18_ffcv trainer.max_epochs=88 --json plan.json

  --rate R            images/s that your GPU trains at 224 px with this network (default: an estimate for an A10G)
  --loader-rate R     images/s that your loader delivers (default: measured with data.root, 5 s for each image size;
                      for a URL, and without data.root, the loader is never the limit)
  --price-per-hour P  dollars per hour of the machine
  --json FILE         write the plan: phases, lr (at the first step of each epoch), total_steps, gpu_hours,
                      price (in dollars; null without --price-per-hour), published_top1, reproduced,
                      changed (keys of the command line that change the recipe), expected_top1 (null if any changed)

Any override of train.py may be added. Without data.root, the plan is for ImageNet's 1,281,167 training images. Nothing
is trained. The phases are for one GPU; trainer.devices=8 adds the hours of eight, a recipe those of its source's GPUs.
Smaller images train faster, so they need a faster loader: 900 images/s at 224 px are 1,760 at 160 px."""


def main(argv: list[str]) -> None:
    options = parse(argv)
    from imagenet_opt.config.compose import composed
    from imagenet_opt.config.dataset import data_of, demo_of
    from imagenet_opt.display.terminal_table import print_tables
    from imagenet_opt.plan.plan import IMAGENET, changed_keys, make_plan
    from imagenet_opt.plan.table import table

    config, sizes = composed(tuple(options.overrides)), IMAGENET
    has_data = bool(config.data.get("root")) or "root" not in config.data
    if has_data:
        data = data_of(config) if "root" in config.data else demo_of(config)
        train, val = data.open("train"), data.open("val")
        sizes = len(train), len(val), len(train.classes)
    make_plan(config, sizes)  # refuses a run without a plan before anything is measured
    rates, about_loader = _loader_rates(options.loader_rate, config, measure=has_data)
    plan = make_plan(config, sizes, rate=options.rate, loaded=rates)
    price = options.price_per_hour and options.price_per_hour * plan.gpu_hours
    changed = changed_keys(options.overrides, config)
    is_estimate = options.rate is None
    print_tables([table(plan, is_estimate=is_estimate, about_loader=about_loader, price=price, changed=changed)])
    if options.json is not None:
        facts = {"command": ["imagenet-opt", "plan", *argv], **asdict(plan), "price": price, "changed": changed}
        facts |= {key: plan.recipe.get(key) for key in ("published_top1", "reproduced")}
        facts["expected_top1"] = None if changed else plan.recipe.get("expected_top1")
        options.json.write_text(json.dumps(facts, indent=1))


def _loader_rates(rate: float | None, config: "DictConfig", *, measure: bool) -> tuple[dict[int, float], str]:
    """Images/s of the loader by image size, and a sentence about their source, or why they are unknown."""
    from imagenet_opt.config.build import image_sizes
    from imagenet_opt.plan.plan import SECONDS, loader_rates

    if rate is not None:
        return dict.fromkeys(image_sizes(config), rate), "The loader's rate is that of --loader-rate."
    if not measure or is_url(config.data.get("root") or ""):
        way = "imagenet-opt doctor measures it" if measure else "with data.root it is measured"
        return {}, f"The loader is assumed to keep up; {way}, and --loader-rate sets its rate."
    try:
        with announced(len(set(image_sizes(config)))) as announce:
            rates = loader_rates(config, announce)
    except ConfigError as error:
        return {}, f"The loader is assumed to keep up, as it could not be measured: {error}."
    return rates, f"The loader was measured alone, for {SECONDS:.0f} s a size, with files that were not in memory."


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("plan")
    for flag in ("--rate", "--loader-rate", "--price-per-hour"):
        parser.add_argument(flag, type=between(0.001, 1_000_000_000))
    parser.add_argument("--json", type=new_file)
    return parser.parse_intermixed_args(argv)
