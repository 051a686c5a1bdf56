"""Keys of a recipe reach the run: a change of the key changes the losses of training or validation."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from imagenet_opt.run.numbers import read_rows
from tests.config.configs import composed, fitted

PLAIN = (
    "callbacks=[acceleration,mixing]",
    *("trainer.precision=32-true", "trainer.deterministic=true", "trainer.max_epochs=1", "trainer.log_every_n_steps=1"),
    *("data.num_workers=0", "data.batch_size=12", "data.image_size=32"),
    *("model.name=test_resnet", "model.label_smoothing=0", "schedule.warmup_epochs=0"),
)
SMOOTHED_BCE = ("model.loss=bce_mean", "model.label_smoothing=0.3")
TRAINING, VALIDATION = "train/loss", "val/loss"

Losses = dict[str, list[float]]


@pytest.fixture(scope="module")
def losses_of(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Losses]:
    """Losses of a short run with these overrides of the plain run; the same overrides train only once."""

    @cache
    def run_once(*overrides: str) -> Losses:
        folder = tmp_path_factory.mktemp("run")
        fitted(composed(folder, f"data.root={images_root}", *PLAIN, *overrides))
        rows = [row for _, row in read_rows(folder / "run/metrics.csv")]
        return {key: [row[key] for row in rows if key in row] for key in (TRAINING, VALIDATION)}

    return run_once


def test_the_plain_run_is_repeatable(losses_of: Callable[..., Losses]) -> None:
    """Without this, the tests below could not fail."""
    plain = losses_of()
    assert plain == losses_of("trainer.num_sanity_val_steps=0")
    assert (len(plain[TRAINING]), len(plain[VALIDATION])) == (3, 1)


CHANGES_OF_TRAINING = (
    *("model.label_smoothing=0.1", "model.loss=bce_mean", "model.blurpool=true", "model.zero_init_last=false"),
    *("model.drop_path_rate=0.5", "model.max_grad_norm=0.01", "callbacks.mixing.mode=on", "optimizer.nesterov=false"),
    *("optimizer.weight_decay=0.05", "schedule=linear", "schedule.warmup_epochs=1", "seed=1"),
    *("data.crop_scale=[0.5,0.6]", "data.repeated_augmentation=3", "data.augment=rand-m9-n2-p1"),
    *("data.random_erasing=0.9", "data.interpolation=bicubic", "data.mean=[0.5,0.5,0.5]"),
)
CHANGES_OF_VALIDATION = (
    *("model.val_flip=true", "data.val_image_size=40", "data.val_crop_ratio=0.5", "data.val_interpolation=area"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "key", "loss"),
    [
        *(((), key, TRAINING) for key in CHANGES_OF_TRAINING),
        *(((), key, VALIDATION) for key in CHANGES_OF_VALIDATION),
        (SMOOTHED_BCE, "model.target_threshold=0.2", TRAINING),
        (("optimizer.weight_decay=0.05",), "optimizer.no_decay=none", TRAINING),
    ],
)
def test_a_key_changes_the_run(losses_of: Callable[..., Losses], base: tuple[str, ...], key: str, loss: str) -> None:
    assert losses_of(*base, key)[loss] != losses_of(*base)[loss]


@pytest.mark.parametrize(
    ("callback", "options", "loss"),
    [("ema", ["decay=0.5"], VALIDATION), ("resolution_schedule", ["start=24", "end=32", "step=8"], TRAINING)],
)
def test_a_callback_changes_the_run(
    losses_of: Callable[..., Losses], callback: str, options: list[str], loss: str
) -> None:
    words = [f"callbacks.{callback}.{option}" for option in options]
    assert losses_of(f"callbacks=[acceleration,mixing,{callback}]", *words)[loss] != losses_of()[loss]
