"""A run that has stopped early stays finished."""

from pathlib import Path

from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.callbacks.early_stop import EarlyStop
from tests.callbacks.test_checkpoint import score_epochs


def test_a_run_that_stopped_early_trains_on_only_with_another_threshold(project, tmp_path: Path) -> None:
    """Ten steps an epoch."""
    scores, resumed = (0.2, 0.6, 0.7, 0.9, 0.9), None
    for threshold, step in ((0.5, 20), (0.5, 20), (0.8, 40)):
        stop = EarlyStop("val/acc1", mode="max", stopping_threshold=threshold)
        callbacks = score_epochs(*scores), stop, Checkpoint(folder=str(tmp_path))
        project.fit(*callbacks, max_epochs=5, ckpt_path=resumed)
        assert project.trainer.global_step == step
        resumed = tmp_path / "last.ckpt"
