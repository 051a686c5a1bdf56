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
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import torch

from imagenet_opt.machine import cpu_name, usable_cpus, versions
from suites.learning import timm_run, trainer_run
from suites.learning.recipe import Learned, Recipe, link_images
from suites.learning.verdict import table


def compare(recipe: Recipe, source: Path, folder: Path, *, num_images: int, num_seeds: int) -> str:
    """Train both in turns, `num_seeds` runs each, on `num_images` of the training images. Returns the table.

    folder: for links, indices and runs; empty.
    """
    root = folder / "images"
    num_classes = link_images(source, root, num_train=num_images)
    runs: dict[str, list[Learned]] = {"this trainer": [], "timm": []}
    for seed in range(num_seeds):
        turns = {
            "this trainer": partial(trainer_run.train, recipe, root, folder / f"seed{seed}", seed),
            "timm": partial(timm_run.train, recipe, root, num_classes, seed),
        }
        for name in list(turns)[:: -1 if seed % 2 else 1]:
            began = time.perf_counter()
            runs[name].append(turns[name]())
            learned, seconds = runs[name][-1], time.perf_counter() - began
            rate = f"{learned.images_per_second:.0f} images/s"
            print(f"seed {seed}, {name}: top-1 {learned.top1:.2f} %, {rate}, {seconds:.0f} s", flush=True)
    return table(runs["this trainer"], runs["timm"])


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
        print(compare(recipe, options.data, Path(folder), num_images=options.images, num_seeds=options.seeds))


if __name__ == "__main__":
    main()
