"""A run with the options of a long recipe has the same result after a resume at any place."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from imagenet_opt.run.loggers.metrics_rows import read_rows
from imagenet_opt.training.build_run import build_run
from tests.callbacks.test_checkpoint import Unhurried
from tests.config.configs import composed
from tests.test_train import assert_same, opened

STEPS_PER_EPOCH = 3
GROWTH = ("start=24", "end=32", "step=8", "grow_from=0.5", "grow_until=0.5")
RECIPE = (
    "checkpoint.keep=20",
    *("trainer.precision=32-true", "trainer.deterministic=true", "trainer.max_epochs=4", "trainer.log_every_n_steps=1"),
    "callbacks=[acceleration,mixing,ema,resolution_schedule,checkpoint]",
    *(f"callbacks.resolution_schedule.{option}" for option in GROWTH),
    *("callbacks.mixing.mode=on", "callbacks.ema.decay=0.5", "schedule.warmup_epochs=1.5"),
    *("data.num_workers=2", "data.global_batch_size=12", "data.augment=rand-m9-mstd0.5", "data.color_jitter=0.4"),
    *("data.random_erasing=0.5", "data.random_erasing_mode=pixel"),
    *("model.name=test_resnet", "model.drop_path_rate=0.2"),
    *("model.micro_batch_size=5", "model.batch_norm_momentum=per_step"),
)


@pytest.fixture(scope="module")
def uninterrupted(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run that keeps a checkpoint of each step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("imagenet_opt.data.order.PART_IMAGES", 5)  # splits a batch of 12 like a batch of thousands
        yield fit(tmp_path_factory.mktemp("whole"), images_root, "checkpoint.every_n_steps=1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(2, id="inside the warmup, inside an epoch"),
        pytest.param(2 * STEPS_PER_EPOCH, id="where the images grow"),
        pytest.param(2 * STEPS_PER_EPOCH + 1, id="after the images grew"),
    ],
)
def test_a_resumed_run_ends_as_an_uninterrupted_run(
    step: int, uninterrupted: Path, images_root: Path, tmp_path: Path
) -> None:
    resumed = fit(tmp_path / "resumed", images_root, f"resume_from={uninterrupted}/checkpoints/step_{step:08}.ckpt")
    assert_same(*[opened(folder / "last.ckpt") for folder in (uninterrupted, resumed)])
    assert rows(resumed) == [row for row in rows(uninterrupted) if row[0] >= step] != []


def fit(folder: Path, images_root: Path, *overrides: str) -> Path:
    """Trains to the end and returns the folder of the run."""
    run = build_run(composed(folder, f"data.root={images_root}", *RECIPE, *overrides))
    run.trainer.callbacks.append(Unhurried())  # type: ignore[attr-defined]
    torch.manual_seed(0 if run.checkpoint is None else 99)
    run.trainer.fit(run.model, datamodule=run.data, ckpt_path=run.checkpoint, weights_only=True)
    return folder / "run"


def rows(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Training metrics of each step."""
    training = [(step, row) for step, row in read_rows(folder / "metrics.csv") if "train/loss" in row]
    return [
        (step, {key: row[key] for key in ("train/loss", "train/acc1", "lr") if key in row}) for step, row in training
    ]
