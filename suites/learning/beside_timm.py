"""The same network trained by timm's own functions and by this project's trainer: same images, recipe and length.

    OMP_NUM_THREADS=1 python -m suites.learning.beside_timm CIFAR10 --images 20000 --epochs 10 --seeds 3

CIFAR10 is a folder with train/CLASS and val/CLASS; any such folder of images will do. Both trainers run on the CPU in
float32, in turns, and every second pair in the other order. The table has the top-1 of each seed after the last epoch,
and the images per second of training. Seeds do not pair the runs: each trainer draws other weights, orders and crops
from the same seed.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as train.py does

import argparse
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev, variance

import torch

from imagenet_opt.compare.rounds import Rounds, in_rounds
from imagenet_opt.display.table import Cell, Column, Table
from imagenet_opt.machine import cpu_name, usable_cpus, versions
from imagenet_opt.measure.stats.intervals import CONFIDENCE
from imagenet_opt.measure.stats.verdict import paired_ratios, student_quantile
from suites.learning import timm_run, trainer_run
from suites.learning.recipe import Learned, Recipe, link_images

OURS, TIMM = "this trainer", "timm"
MARGIN = 1.5
"""Percentage points of top-1. The seeds of a run as short as this one differ by about half a point, and three seeds of
each trainer then give an interval of about one point on both sides."""
RULE = (
    f"Rule: within the seed noise, if the {CONFIDENCE:.0%} interval of the difference contains 0 and lies between "
    f"-{MARGIN} and +{MARGIN} points; not within the seed noise, if it does not contain 0; otherwise undecided."
)


def train_both(recipe: Recipe, source: Path, folder: Path, *, num_images: int, num_seeds: int) -> Rounds[Learned]:
    """Train both in turns, `num_seeds` runs each, on `num_images` of the training images.

    folder: for links, indices and runs; empty.
    """
    root = folder / "images"
    num_classes = link_images(source, root, num_train=num_images)

    def train(name: str, seed: int) -> Learned:
        began = time.perf_counter()
        if name == OURS:
            learned = trainer_run.train(recipe, root, folder / f"seed{seed}", seed)
        else:
            learned = timm_run.train(recipe, root, num_classes, seed)
        rate, seconds = f"{learned.images_per_second:.0f} images/s", time.perf_counter() - began
        print(f"seed {seed}, {name}: top-1 {learned.top1:.2f} %, {rate}, {seconds:.0f} s", flush=True)
        return learned

    return in_rounds((OURS, TIMM), train, range(num_seeds))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """ours - theirs, of the means of equally many runs, with Student's interval for two samples of equal variance; the
    interval of a single run of each has no end."""
    num, middle = len(ours), mean(ours) - mean(theirs)
    if num < 2:
        return middle, -math.inf, math.inf
    noise = math.sqrt((variance(ours) + variance(theirs)) / num)
    reach = student_quantile((1 + CONFIDENCE) / 2, 2 * num - 2) * noise
    return middle, middle - reach, middle + reach


def verdict(low: float, high: float) -> str:
    """By RULE."""
    if not low <= 0 <= high:
        return "not within the seed noise"
    return "within the seed noise" if low >= -MARGIN and high <= MARGIN else "undecided: use more --seeds"


def table(runs: Rounds[Learned], title: str) -> Table:
    """A row of each seed, and of the means and deviations over the seeds."""
    top1 = {name: [run.top1 for run in learned] for name, learned in runs.results.items()}
    rates = {name: [run.images_per_second for run in learned] for name, learned in runs.results.items()}
    (ratio,) = paired_ratios(rates, [(OURS, TIMM)])
    numbers = (top1[OURS], top1[TIMM], rates[OURS], rates[TIMM])
    rows: list[tuple[Cell, ...]] = [
        (str(seed), *of_seed, of_seed[2] / of_seed[3]) for seed, of_seed in enumerate(zip(*numbers, strict=True))
    ]
    rows.append(("mean", *map(mean, numbers), ratio.ratio))
    if len(top1[OURS]) > 1:
        rows.append(("standard deviation", *map(stdev, numbers[:2]), None, None, None))
    points, low, high = difference(top1[OURS], top1[TIMM])
    columns = (
        Column("seed"),
        *(Column(f"{name}, top-1 %", "{:.2f}") for name in (OURS, TIMM)),
        *(Column(f"{name}, images/s", "{:.0f}") for name in (OURS, TIMM)),
        Column("ratio", "{:.2f}"),
    )
    notes = (
        f"Top-1, {OURS} - {TIMM}: {points:+.2f} points ({low:+.2f} to {high:+.2f}).",
        f"Images/s, {OURS} / {TIMM}: {ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f}).",
        RULE,
    )
    return Table(title, columns, tuple(rows), notes, finding=f"Verdict: {verdict(low, high)}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with train/CLASS and val/CLASS")
    parser.add_argument("--images", type=int, default=20_000, help="training images, equally many of each class; fewer "
                        "are quicker, but scatter more from seed to seed (default: %(default)s)")  # fmt: skip
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training images, the first of them the "
                        "warmup; two or more (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3, help="runs of each trainer; more seeds find smaller "
                        "differences, and one seed decides nothing (default: %(default)s)")  # fmt: skip
    parser.add_argument("--model", default="resnet10t", help="a name of timm.list_models() (default: %(default)s)")
    parser.add_argument("--image-size", type=int, default=32, help="pixels of a side (default: %(default)s)")
    options = parser.parse_args()
    if options.epochs < 2 or options.seeds < 1:
        parser.error("--epochs must be at least 2, since the first is the warmup, and --seeds at least 1")
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    recipe = Recipe(model=options.model, image_size=options.image_size, epochs=options.epochs)
    print(f"{cpu_name()}, {usable_cpus()} CPUs, {torch.get_num_threads()} threads; {versions()}\n{recipe}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = train_both(recipe, options.data, Path(folder), num_images=options.images, num_seeds=options.seeds)
    print(table(runs, f"{recipe.model}, {recipe.epochs} epochs of {options.images} images").markdown())


if __name__ == "__main__":
    main()
