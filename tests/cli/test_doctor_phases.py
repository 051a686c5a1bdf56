"""What of the main process's time the doctor calls by which name."""

import pytest

from imagenet_opt.cli.doctor_fit import _phase


@pytest.mark.parametrize(
    ("action", "phase"),
    [
        ("[_TrainingEpochLoop].train_dataloader_next", "fetch"),
        ("save_checkpoint", "checkpoint"),
        ("[Callback]Checkpoint.on_train_batch_end", "checkpoint"),
        ("[Callback]ModelCheckpoint{'monitor': 'val.loss'}.on_train_batch_end", "checkpoint"),
        ("[Callback]Throughput.on_save_checkpoint", "checkpoint"),
        ("[Callback]GradientCheckpointing.on_train_batch_end", "callback GradientCheckpointing"),
        ("[Callback]Watch.on_train_batch_end", "device"),
        ("[Callback]WatchGradients.on_train_batch_end", "callback WatchGradients"),
        ("[Callback]Rehearsal.on_train_batch_start", "device"),
        ("[Callback]RehearsalNotes.on_train_batch_start", "callback RehearsalNotes"),
        ("[Logger]MetricsCsv.log_metrics", "logging"),
        ("run_training_batch", "step"),
    ],
)
def test_only_exact_names_are_known(action: str, phase: str) -> None:
    assert _phase(action) == phase
