"""One training run with this project's trainer, built from its configuration as train.py builds it."""

import time
from pathlib import Path

from lightning.pytorch import Callback, Trainer

from imagenet_opt.training.build_run import build_run
from suites.learning.recipe import CROP_SCALE, LR_PER_256, MOMENTUM, SMOOTHING, WEIGHT_DECAY, Learned, Recipe
from tests.conftest import composed


class Stopwatch(Callback):
    """When the first step and the last step of a fit ended, in seconds of the performance counter."""

    def __init__(self) -> None:
        self.first = self.last = 0.0

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last


def train(recipe: Recipe, root: Path, folder: Path, seed: int) -> Learned:
    """folder: of the run and the index of the images."""
    run = build_run(composed(*overrides(recipe, root, folder, seed)))
    watch = Stopwatch()
    run.trainer.callbacks.append(watch)
    run.trainer.fit(run.model, datamodule=run.data)
    images = (run.trainer.global_step - 1) * recipe.batch_size
    return Learned(100 * float(run.trainer.callback_metrics["val/acc1"]), images / (watch.last - watch.first))


def overrides(recipe: Recipe, root: Path, folder: Path, seed: int) -> list[str]:
    """The recipe in the words of the command line, without the displays and telemetry of train.py."""
    return [
        "~hydra",
        f"run_folder={folder / 'run'}",
        f"seed={seed}",
        "logger=csv",
        "callbacks=[acceleration,mixing,throughput,bottleneck,checkpoint]",
        f"data.root={root}",
        f"data.cache_dir={folder / 'cache'}",
        f"data.batch_size={recipe.batch_size}",
        f"data.image_size={recipe.image_size}",
        f"data.num_workers={recipe.workers}",
        f"data.crop_scale=[{CROP_SCALE[0]},{CROP_SCALE[1]}]",
        "data.val_crop_ratio=1.0",
        f"model.name={recipe.model}",
        f"model.label_smoothing={SMOOTHING}",
        f"optimizer.lr={LR_PER_256}",
        f"optimizer.momentum={MOMENTUM}",
        f"optimizer.weight_decay={WEIGHT_DECAY}",
        f"schedule.warmup_epochs={recipe.warmup}",
        "trainer.accelerator=cpu",
        "trainer.devices=1",
        "trainer.precision=32-true",
        f"trainer.max_epochs={recipe.epochs}",
        f"trainer.check_val_every_n_epoch={recipe.epochs}",
    ]
