"""A run learns: the losses of its first steps, and an accuracy far above chance."""

from pathlib import Path

import pytest

from imagenet_opt.run.numbers import read_rows
from tests.config.configs import composed, fitted

pytestmark = pytest.mark.slow

FIRST_LOSSES = (
    *(2.4630, 2.2526, 2.4359, 2.3675, 2.3685, 2.2216, 2.3386, 2.3564, 2.4063, 2.3649),
    *(2.4084, 2.4435, 2.3410, 2.3354, 2.3032, 2.2742, 2.3730, 2.3027, 2.3833, 2.2056),
)
"""Losses of the steps 1 to 20 with seed 0, in float32 on a CPU. Successive losses differ by several per cent."""
TOLERANCE, LATE_TOLERANCE, LATE = 1e-2, 2e-2, 14
"""Relative tolerance of the losses, and of those after the step LATE. Kernels of another CPU or version of torch round
differently, and training multiplies the difference from step to step: a CPU with AVX2 instead of AVX-512 changes the
10th loss by 2e-3 at most, the 20th by 1e-2. The learning rate rises over most of the run, because at the full rate a
difference grows faster. Another order of images, crop, normalisation or initial weight changes the first losses by more
than this tolerance."""


def fit(folder: Path, *overrides: str) -> tuple[list[float], list[float]]:
    """The training loss of each logging step, and acc1 of each validation, from metrics.csv."""
    words = ("data.num_workers=0", "callbacks=[acceleration,mixing]", "trainer.precision=32-true")
    fitted(composed(folder, *words, *overrides))
    rows = [row for _, row in read_rows(folder / "run/metrics.csv")]
    losses, accuracies = ([row[key] for row in rows if key in row] for key in ("train/loss", "val/acc1"))
    return losses, accuracies


def test_a_small_demo_begins_with_the_same_losses_and_learns(tmp_path: Path) -> None:
    small = ("data.num_train=1000", "data.num_val=200", "data.image_size=32", "data.batch_size=25")
    how = (
        "model.name=test_resnet",
        "trainer.max_epochs=7",
        "trainer.check_val_every_n_epoch=7",
        "schedule.warmup_epochs=6",
        "trainer.log_every_n_steps=1",
    )
    losses, accuracies = fit(tmp_path, "experiment=demo", *small, *how)
    assert losses[:LATE] == pytest.approx(FIRST_LOSSES[:LATE], rel=TOLERANCE)
    assert losses[LATE : len(FIRST_LOSSES)] == pytest.approx(FIRST_LOSSES[LATE:], rel=LATE_TOLERANCE)
    assert accuracies[-1] > 0.7  # chance is 0.1
