"""The data module in a Trainer: batches, and refusals of resumed runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback

from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.run.checkpoint.position import position, rewrite_position
from tests.data.fits import fit

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


def test_a_second_fit_of_resumed_data_starts_at_the_beginning(data: Callable[..., ImageData], tmp_path: Path) -> None:
    saved = tmp_path / "one.ckpt"
    saving = LambdaCallback(
        on_train_batch_start=lambda trainer, *_: trainer.global_step == 4 and trainer.save_checkpoint(saved),
        on_save_checkpoint=lambda trainer, _, checkpoint: rewrite_position(checkpoint, position(trainer)),
    )
    fit(data(), saving, max_steps=5)
    resumed = data()
    assert [key[:2] for key in fit(resumed, resume=saved, max_steps=6).trained] == [(0, 4), (0, 5)]
    assert [key[:2] for key in fit(resumed, max_steps=2).trained] == [(0, 0), (0, 1)]


@pytest.mark.parametrize(("limit", "labels"), [(1, {0, 1, 2}), (0.4, {0, 1, 2}), (1.0, {0})])
def test_a_limited_validation_begins_with_all_classes(
    data: Callable[..., ImageData], limit: float, labels: set[int]
) -> None:
    made = data(batch_size=6)
    made.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, limit_val_batches=limit)
    assert {*next(iter(made.val_dataloader())).labels.tolist()} == labels


def test_epochs_that_end_early_have_the_first_batches_of_each(data: Callable[..., ImageData]) -> None:
    trained = fit(data(num_workers=2), limit_train_batches=2).trained
    assert [key[:2] for key in trained] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
