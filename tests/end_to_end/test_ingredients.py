"""Each ingredient of a recipe reaches the run: a key that is set changes the losses of training or of validation."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from imagenet_opt.run.loggers.metrics_csv import read_rows
from imagenet_opt.training.build_run import build_run
from tests.conftest import composed

PLAIN = (
    "~hydra",
    "logger=csv",
    "callbacks=[acceleration,mixing]",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.precision=32-true",
    "trainer.deterministic=true",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=1",
    "data.num_workers=0",
    "data.batch_size=12",
    "data.image_size=32",
    "model.name=test_resnet",
    "model.label_smoothing=0",
    "schedule.warmup_epochs=0",
)
BCE = ("model.loss=bce_mean",)
SMOOTHED_BCE = (*BCE, "model.label_smoothing=0.3")
RESNET = ("model.name=resnet18", "trainer.max_steps=1")
MIXED = ("callbacks.mixing.mode=on",)
TRAINING = "train/loss"
VALIDATION = "val/loss"

Losses = dict[str, list[float]]


@pytest.fixture(scope="module")
def losses_of(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Losses]:
    """Losses of a short run by overrides of the plain one; each run is made once."""

    @cache
    def run_once(*overrides: str) -> Losses:
        folder = tmp_path_factory.mktemp("run")
        own = (f"run_folder={folder}", f"data.root={images_root}", f"data.cache_dir={folder / 'cache'}")
        run = build_run(composed(*PLAIN, *own, *overrides))
        run.trainer.fit(run.model, datamodule=run.data)
        rows = [row for _, row in read_rows(folder / "metrics.csv")]
        return {key: [row[key] for row in rows if key in row] for key in (TRAINING, VALIDATION)}

    return run_once


def test_the_plain_run_is_the_same_again(losses_of: Callable[..., Losses]) -> None:
    """Otherwise the test below could not fail."""
    plain = losses_of()
    assert plain == losses_of("trainer.num_sanity_val_steps=0")
    assert len(plain[TRAINING]) == 6
    assert len(plain[VALIDATION]) == 2


@pytest.mark.parametrize(
    ("without", "key", "seen_in"),
    [
        ((), "model.label_smoothing=0.1", TRAINING),
        ((), "model.loss=bce_mean", TRAINING),
        (BCE, "model.loss=bce_sum", TRAINING),
        (SMOOTHED_BCE, "model.target_threshold=0.2", TRAINING),
        ((), "model.blurpool=true", TRAINING),
        ((), "model.blurpool=strided_convs", TRAINING),
        (RESNET, "model.small_stem=true", TRAINING),
        ((), "model.zero_init_last=false", TRAINING),
        ((), "model.drop_path_rate=0.5", TRAINING),
        ((), "model.max_grad_norm=0.01", TRAINING),
        ((), "model.val_flip=true", VALIDATION),
        ((), "callbacks.mixing.mode=on", TRAINING),
        (MIXED, "callbacks.mixing.mixup_alpha=0", TRAINING),
        (MIXED, "callbacks.mixing.cutmix_alpha=0", TRAINING),
        (MIXED, "callbacks.mixing.last_epochs_off=1", TRAINING),
        ((), "optimizer.lr=0.25", TRAINING),
        ((), "optimizer.momentum=0.5", TRAINING),
        ((), "optimizer.nesterov=false", TRAINING),
        ((), "optimizer.weight_decay=0.05", TRAINING),
        (("optimizer.weight_decay=0.05",), "optimizer.no_decay=none", TRAINING),
        ((), "schedule=linear", TRAINING),
        ((), "schedule.warmup_epochs=1", TRAINING),
        ((), "schedule.final_factor=0.5", TRAINING),
        ((), "data.crop_scale=[0.5,0.6]", TRAINING),
        ((), "data.repeated_augmentation=3", TRAINING),
        ((), "data.augment=rand-m9-n2-p1", TRAINING),
        ((), "data.augment=trivialaugment", TRAINING),
        ((), "data.color_jitter=0.4", TRAINING),
        ((), "data.random_erasing=0.9", TRAINING),
        (("data.random_erasing=0.9",), "data.random_erasing_mode=pixel", TRAINING),
        ((), "data.val_image_size=40", VALIDATION),
        ((), "data.val_crop_ratio=0.5", VALIDATION),
        ((), "data.interpolation=bicubic", TRAINING),
        ((), "data.val_interpolation=area", VALIDATION),
        ((), "data.mean=[0.5,0.5,0.5]", TRAINING),
        ((), "data.std=[0.5,0.5,0.5]", TRAINING),
        ((), "seed=1", TRAINING),
    ],
)
def test_a_key_changes_the_run(
    losses_of: Callable[..., Losses], without: tuple[str, ...], key: str, seen_in: str
) -> None:
    assert losses_of(*without, key)[seen_in] != losses_of(*without)[seen_in]


@pytest.mark.parametrize(
    ("callback", "options", "seen_in"),
    [
        ("ema", ["decay=0.5"], VALIDATION),
        ("resolution_schedule", ["start=24", "end=32", "step=8", "grow_until=0.5"], TRAINING),
    ],
)
def test_a_callback_changes_the_run(
    losses_of: Callable[..., Losses], callback: str, options: list[str], seen_in: str
) -> None:
    own = [f"callbacks.{callback}.{option}" for option in options]
    assert losses_of(f"callbacks=[acceleration,mixing,{callback}]", *own)[seen_in] != losses_of()[seen_in]
