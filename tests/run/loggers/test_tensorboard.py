"""What TensorBoard shows of a run that was resumed."""

from pathlib import Path

import pytest

from imagenet_opt.run.loggers.tensorboard import TensorBoard

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def test_each_step_of_a_resumed_run_is_shown_once_as_it_was_logged_last(tmp_path: Path) -> None:
    for first, value in ((0, 1.0), (6, 2.0)):
        logger = TensorBoard(save_dir=str(tmp_path), name="", version="")
        logger.truncate_after(first - 1)
        for step in range(first, 10):
            logger.log_metrics({"train/loss": value}, step=step)
        logger.finalize("success")
    shown = accumulator.EventAccumulator(str(tmp_path)).Reload().Scalars("train/loss")
    assert [(event.step, event.value) for event in shown] == [(s, 1.0 if s < 6 else 2.0) for s in range(10)]
