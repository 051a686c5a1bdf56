"""Fine-tuning of a run's checkpoint on ten other classes, beside random weights: same recipe, same images.

    python -m suites.learning.fine_tuning IMAGENET_SAMPLE RUN_FOLDER

IMAGENET_SAMPLE is a folder with a folder of images for each of ImageNet's 1000 classes; one image each is enough. They
make ten classes, such as birds, primates and food, by ranges of ImageNet's class numbers. The images are split into
folds; each fold is once the validation of a network that is trained on the others, so each image is judged once.
RUN_FOLDER is a run of experiment=cifar10.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as train.py does

import argparse
import logging
import tempfile
import warnings
from itertools import chain
from pathlib import Path
from statistics import mean

import torch

from imagenet_opt.machine import cpu_name, usable_cpus, versions
from imagenet_opt.measure.stats.paired_ratios import student_quantile
from imagenet_opt.training.build_run import build_run
from tests.conftest import composed

CLASSES = {
    "fish": [(0, 7), (389, 398)],
    "bird": [(7, 25), (80, 101), (127, 147)],
    "reptile_or_amphibian": [(25, 69)],
    "insect_or_spider": [(69, 80), (300, 327)],
    "shellfish_or_worm": [(107, 127)],
    "dog": [(151, 269)],
    "cat_or_wild_dog": [(269, 294)],
    "hoofed_animal": [(339, 356)],
    "primate": [(365, 385)],
    "food": [(924, 970)],
}
"""Ranges of ImageNet's class numbers, in the order of its synsets; the end is not part of a range."""
MOST = 46
"""Images of a class, so that dogs do not outnumber all others."""


def link_fold(sample: Path, folder: Path, fold: int, num_folds: int) -> int:
    """Make folders of links to the images of CLASSES in folder/train and folder/val. Returns how many are in val."""
    synsets = sorted(path for path in sample.iterdir() if path.is_dir())
    if len(synsets) != 1000:
        raise SystemExit(f"{sample} has {len(synsets)} folders; it must have one for each of ImageNet's 1000 classes")
    num_val = 0
    for name, ranges in CLASSES.items():
        numbers = list(chain(*(range(*limits) for limits in ranges)))
        numbers = numbers[:: -(-len(numbers) // MOST)]
        for place, number in enumerate(numbers):
            split = "val" if place % num_folds == fold else "train"
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            for image in synsets[number].iterdir():
                (folder / split / name / image.name).symlink_to(image.resolve())
                num_val += split == "val"
    return num_val


def train(root: Path, folder: Path, weights: list[str], *, num_epochs: int, seed: int) -> float:
    """Top-1 of validation after the last epoch, in per cent."""
    run = build_run(composed(*overrides(root, folder, weights, num_epochs=num_epochs, seed=seed)))
    run.trainer.fit(run.model, datamodule=run.data)
    return 100 * float(run.trainer.callback_metrics["val/acc1"])


def overrides(root: Path, folder: Path, weights: list[str], *, num_epochs: int, seed: int) -> list[str]:
    """The run in the words of the command line, without the displays and telemetry of train.py."""
    return [
        "experiment=finetune",
        "model=resnet18",
        "model.small_stem=true",
        "model.pretrained=false",
        *weights,
        "~hydra",
        f"run_folder={folder}",
        f"seed={seed}",
        "logger=csv",
        "callbacks=[acceleration,mixing,throughput,bottleneck,learning_rate,checkpoint]",
        "callbacks.mixing.mode=off",
        f"data.root={root}",
        f"data.cache_dir={folder / 'cache'}",
        "data.batch_size=32",
        "data.image_size=32",
        "data.val_crop_ratio=1.0",
        "data.num_workers=1",
        "trainer.accelerator=cpu",
        "trainer.devices=1",
        "trainer.precision=bf16-mixed",
        f"trainer.max_epochs={num_epochs}",
        f"trainer.check_val_every_n_epoch={num_epochs}",
    ]


def table(tuned: list[float], random: list[float]) -> str:
    """Markdown: top-1 by fold, their means, and the mean difference with Student's interval over the folds."""
    lines = ["| fold | from the checkpoint, top-1 % | from random weights, top-1 % |", "|---|---|---|"]
    lines += [
        f"| {fold} | {ours:.1f} | {theirs:.1f} |" for fold, (ours, theirs) in enumerate(zip(tuned, random, strict=True))
    ]
    lines.append(f"| mean | {mean(tuned):.1f} | {mean(random):.1f} |")
    differences = torch.tensor(tuned) - torch.tensor(random)
    reach = student_quantile(0.975, len(tuned) - 1) * float(differences.std()) / len(tuned) ** 0.5
    middle = float(differences.mean())
    return "\n".join([*lines, "", f"gain: {middle:+.1f} points ({middle - reach:+.1f} to {middle + reach:+.1f})"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sample", type=Path, help="folder with a folder of images for each class of ImageNet")
    parser.add_argument("run", type=Path, help="run folder of experiment=cifar10")
    parser.add_argument("--folds", type=int, default=5, help="two or more (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="of each training (default: %(default)s)")
    options = parser.parse_args()
    if options.folds < 2:
        parser.error("--folds must be at least 2")
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(f"{cpu_name()}, {usable_cpus()} CPUs, {torch.get_num_threads()} threads; {versions()}", flush=True)
    starts = {"checkpoint": [f"model.init_from={options.run.absolute()}"], "random weights": []}
    reached: dict[str, list[float]] = {name: [] for name in starts}
    with tempfile.TemporaryDirectory() as place:
        for fold in range(options.folds):
            root = Path(place, f"fold{fold}")
            num = link_fold(options.sample, root, fold, options.folds)
            for name, weights in starts.items():
                run = Path(place, f"{name.split()[0]}{fold}")
                reached[name].append(train(root, run, weights, num_epochs=options.epochs, seed=fold))
                print(f"fold {fold} ({num} images), {name}: top-1 {reached[name][-1]:.1f} %", flush=True)
    print(table(reached["checkpoint"], reached["random weights"]))


if __name__ == "__main__":
    main()
