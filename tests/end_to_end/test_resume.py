"""A run with the ingredients of a long recipe ends the same, wherever it was cut."""

from pathlib import Path

import pytest
import torch

from imagenet_opt.run.loggers.metrics_csv import read_rows
from imagenet_opt.training.build_run import build_run
from tests.conftest import composed
from tests.test_train import assert_same, opened

STEPS_PER_EPOCH = 3
RECIPE = (
    "~hydra",
    "checkpoint.keep=20",
    "logger=csv",
    "callbacks=[acceleration,mixing,ema,resolution_schedule,checkpoint]",
    "callbacks.resolution_schedule.start=24",
    "callbacks.resolution_schedule.end=32",
    "callbacks.resolution_schedule.step=8",
    "callbacks.resolution_schedule.grow_from=0.5",
    "callbacks.resolution_schedule.grow_until=0.5",
    "callbacks.mixing.mode=on",
    "callbacks.ema.decay=0.5",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.precision=32-true",
    "trainer.deterministic=true",
    "trainer.max_epochs=4",
    "trainer.log_every_n_steps=1",
    "data.num_workers=2",
    "data.global_batch_size=12",
    "data.augment=rand-m9-mstd0.5",
    "data.color_jitter=0.4",
    "data.random_erasing=0.5",
    "data.random_erasing_mode=pixel",
    "model.name=test_resnet",
    "model.drop_path_rate=0.2",
    "model.micro_batch_size=5",
    "model.batch_norm_momentum=per_step",
    "schedule.warmup_epochs=1.5",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(2, id="inside the warmup, inside an epoch"),
        pytest.param(2 * STEPS_PER_EPOCH, id="where the images grow"),
        pytest.param(2 * STEPS_PER_EPOCH + 1, id="after the images grew"),
    ],
)
def test_a_run_that_was_cut_ends_as_the_whole_one(
    step: int, images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagenet_opt.data.order.PART_IMAGES", 5)  # each batch of 12 in parts, as batches of thousands
    whole = fit(tmp_path / "whole", images_root, f"checkpoint.every_n_steps={step}")
    resumed = fit(tmp_path / "resumed", images_root, f"resume_from={checkpoint_of(whole, step)}")
    assert_same(*[opened(folder / "last.ckpt") for folder in (whole, resumed)])
    assert rows(resumed) == [row for row in rows(whole) if row[0] >= step] != []


def fit(folder: Path, images_root: Path, *overrides: str) -> Path:
    """Trains to the end and returns the folder of the run."""
    own = (f"run_folder={folder}", f"data.root={images_root}", f"data.cache_dir={folder / 'cache'}")
    run = build_run(composed(*RECIPE, *own, *overrides))
    torch.manual_seed(0 if run.checkpoint is None else 99)
    run.trainer.fit(run.model, datamodule=run.data, ckpt_path=run.checkpoint, weights_only=True)
    return folder


def checkpoint_of(folder: Path, step: int) -> Path:
    return folder / f"checkpoints/step_{step:08}.ckpt"


def rows(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What training logged of each step."""
    kept = ("train/loss", "train/acc1", "lr")
    found = [(step, {key: row[key] for key in kept if key in row}) for step, row in read_rows(folder / "metrics.csv")]
    return [(step, row) for step, row in found if "train/loss" in row]
