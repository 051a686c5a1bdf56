"""`imagenet-opt plan`: what a run will do and cost, before it starts."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_opt.cli.arguments import Parser, check_writable
from imagenet_opt.display.progress import announced
from imagenet_opt.errors import ConfigError
from imagenet_opt.object_storage import is_url

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from imagenet_opt.plan.loader_rates import LoaderRates
    from imagenet_opt.plan.packs import PackedRun
    from imagenet_opt.plan.plan import LoaderRate

HELP = """Show what a run will do and cost before it starts: phases, learning rates, rates, hours, published accuracy.

imagenet-opt plan experiment=rn18_ffcv
imagenet-opt plan experiment=rn50_tv1 data.root=/fsx/imagenet --rate 850 --loader-rate 1100 --price-per-hour 1.21
imagenet-opt plan experiment=rn18_ffcv trainer.max_epochs=88 --json plan.json

  --rate R            images/s that your GPU trains at 224 px with this network (default: an estimate for an A10G)
  --loader-rate R     images/s that your loader delivers (default: measured with data.root, 5 s for each image size,
                      below a URL past the local cache and from it; without data.root, the loader is never the limit)
  --price-per-hour P  dollars per hour of the machine
  --watts W           power of your GPU while it trains (gpu/power_watts of a run), for the energy
  --json FILE         write the plan: phases, lr (at the first step of each epoch), total_steps, gpu_hours,
                      price (in dollars; null without --price-per-hour), published_top1, reproduced,
                      changed (keys of the command line that change the recipe), expected_top1 (null if any changed),
                      requests (of the first epoch and of each later epoch; null without a URL),
                      loader (what was measured; null with --loader-rate)

Any override of train.py may be added. Without data.root, the plan is for ImageNet's 1,281,167 training images. Nothing
is trained. The phases are for one GPU; trainer.devices=8 adds the hours of eight, a recipe those of its source's GPUs.
Smaller images train faster, so they need a faster loader: 900 images/s at 224 px are 1,760 at 160 px. For
data.root=s3://... a table has the GET requests of an epoch, their price, and how much of the data the local cache will
hold. The first epoch, which fills the cache, then has times of its own. The measurement sends requests that cost; the
plan says how many. Where the loader is too slow, some images are packed in memory to show what imagenet-opt pack would
give."""


def main(argv: list[str]) -> None:
    options = parse(argv)
    from imagenet_opt.config.compose import composed
    from imagenet_opt.config.dataset import data_of, demo_of
    from imagenet_opt.display.terminal_table import print_tables
    from imagenet_opt.plan.plan import IMAGENET, changed_keys, limits, make_plan
    from imagenet_opt.plan.requests import epoch_requests
    from imagenet_opt.plan.tables import requests_table, tables

    config, sizes = composed(tuple(options.overrides)), IMAGENET
    has_data = bool(config.data.get("root")) or "root" not in config.data
    if has_data:
        data = data_of(config) if "root" in config.data else demo_of(config)
        train, val = data.open("train"), data.open("val")
        sizes = len(train), len(val), len(train.classes)
    plan = make_plan(config.copy(), sizes, rate=options.rate)
    requests, shares = None, (0.0, 0.0)
    if has_data and is_url(data.root):
        each = plan.validations / len(plan.lr)
        requests = epoch_requests(train, val, data.loading, num_train=plan.images_per_epoch, validations=each)
        shares = requests[0].cached_train_percent / 100, requests[1].cached_train_percent / 100
    distinct = sorted({phase.image_size for phase in plan.phases})
    rates, measured, about_loader = _loader_rates(options, config, distinct, has_data=has_data)
    run: dict[str, Any] = {"sizes": sizes, "rate": options.rate, "loader_rates": rates, "cached_shares": shares}
    plan = make_plan(config.copy(), **run)
    packed = _packed_runs(config, run) if measured is not None and "loader" in limits(plan, rates) else []
    costs = {"price_per_hour": options.price_per_hour, "watts": options.watts}
    changed = changed_keys(options.overrides, config)
    about: dict[str, Any] = {"is_estimate": options.rate is None, "about_loader": about_loader, "loader_rates": rates}
    shown = tables(plan, packed=packed, changed=changed, **about, **costs)
    if requests is not None:
        shown.append(requests_table(str(data.root), *requests, num_epochs=len(plan.lr)))
    print_tables(shown)
    if options.json is not None:
        command = {"command": ["imagenet-opt", "plan", *argv]}
        price = {"price": options.price_per_hour and options.price_per_hour * plan.gpu_hours}
        found = {"packed": [each._asdict() for each in packed], "loader": measured and asdict(measured)}
        epochs = {"requests": requests and [asdict(epoch) for epoch in requests]}
        options.json.write_text(json.dumps(command | plan.plain(changed) | price | found | epochs, indent=1))


def _packed_runs(config: "DictConfig", run: dict[str, Any]) -> "list[PackedRun]":
    """The run with the data packed smaller. run: arguments of `make_plan`."""
    from imagenet_opt.plan.packs import packed_runs

    with announced(1) as announce:
        announce("images that are packed smaller")
        return packed_runs(config, **run)


def _loader_rates(
    options: argparse.Namespace, config: "DictConfig", image_sizes: list[int], *, has_data: bool
) -> tuple[dict[int, "LoaderRate"], "LoaderRates | None", str]:
    """Rates of the loader by image size, what was measured, and a sentence about the source of the rates, or why they
    are unknown."""
    from imagenet_opt.plan.loader_rates import SECONDS, measure_loader_rates
    from imagenet_opt.plan.plan import LoaderRate
    from imagenet_opt.plan.tables import about_measured_rates

    if options.loader_rate is not None:
        rate = LoaderRate(options.loader_rate)
        return dict.fromkeys(image_sizes, rate), None, "The loader's rate is that of --loader-rate."
    if not has_data:
        about = "The loader is assumed to keep up; with data.root it is measured, and --loader-rate sets its rate."
        return {}, None, about
    try:
        with announced(len(image_sizes)) as announce:
            rates = measure_loader_rates(config, image_sizes, announce)
    except ConfigError as error:
        return {}, None, f"The loader is assumed to keep up, as it could not be measured: {error}."
    of_url = is_url(config.data.get("root") or "")
    return rates.by_size, rates, about_measured_rates(rates, SECONDS, of_url=of_url)


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line. Raises ConfigError for unknown options and unsuitable values."""
    parser = Parser("plan")
    parser.add_argument("overrides", nargs="*")
    flags = ("--rate", "--loader-rate", "--price-per-hour", "--watts")
    numbers = [parser.add_argument(flag, type=float) for flag in flags]
    parser.add_argument("--json", type=Path)
    options = parser.parse_intermixed_args(argv)
    for flag, number in zip(flags, numbers, strict=True):
        if (value := getattr(options, number.dest)) is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{flag} {value:g} must be a number above 0")
    if options.json is not None:
        check_writable(options.json)
    return options
