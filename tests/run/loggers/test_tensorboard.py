"""What TensorBoard shows of a run that was resumed."""

from pathlib import Path

import pytest
from lightning import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from imagenet_opt.run.rows import TruncateLogs

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def test_each_step_of_a_resumed_run_is_shown_once_as_it_was_logged_last(tmp_path: Path) -> None:
    for first, value in ((0, 1.0), (6, 2.0)):
        logger = TensorBoardLogger(save_dir=str(tmp_path), name="", version="")
        trainer = Trainer(logger=logger, enable_checkpointing=False, accelerator="cpu")
        trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = first
        TruncateLogs().on_train_start(trainer, LightningModule())
        for step in range(first, 10):
            logger.log_metrics({"train/loss": value}, step=step)
        logger.finalize("success")
    shown = accumulator.EventAccumulator(str(tmp_path)).Reload().Scalars("train/loss")
    assert [(event.step, event.value) for event in shown] == [(s, 1.0 if s < 6 else 2.0) for s in range(10)]
