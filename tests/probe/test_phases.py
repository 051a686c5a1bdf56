"""The phase of each of Lightning's actions."""

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint as LightningCheckpoint
from lightning.pytorch.callbacks import ModelCheckpoint

from imagenet_opt.probe.fit.phases import phase_of
from imagenet_opt.run.hook_timer import saves


class Checkpoint(LightningCheckpoint):
    pass


class Saver(LightningCheckpoint):
    """A checkpoint callback with another name."""


KEPT = ModelCheckpoint(monitor="val.loss")


@pytest.mark.parametrize(
    ("action", "phase"),
    [
        ("[_TrainingEpochLoop].train_dataloader_next", "fetch"),
        ("save_checkpoint", "checkpoint"),
        ("[Callback]Checkpoint.on_train_batch_end", "checkpoint"),
        (f"[Callback]{KEPT.state_key}.on_train_batch_end", "checkpoint"),
        ("[Callback]Saver.on_train_batch_end", "checkpoint"),
        ("[Callback]Throughput.on_save_checkpoint", "checkpoint"),
        ("[Callback]GradientCheckpointing.on_train_batch_end", "callback GradientCheckpointing"),
        ("[Callback]FitTimer.on_train_batch_end", "device"),
        ("[Callback]FitTimerNotes.on_train_batch_end", "callback FitTimerNotes"),
        ("[Callback]Rehearsal.on_train_batch_start", "device"),
        ("[Callback]RehearsalNotes.on_train_batch_start", "callback RehearsalNotes"),
        ("[Logger]MetricsCsv.log_metrics", "logging"),
        ("run_training_batch", "step"),
    ],
)
def test_only_exact_names_are_known(action: str, phase: str) -> None:
    trainer = Trainer(accelerator="cpu", logger=False, callbacks=[Checkpoint(), Saver(), KEPT])
    assert phase_of(action, saves(trainer)) == phase
