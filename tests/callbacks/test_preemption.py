"""A signal stops a run after a save; tests/end_to_end/test_resume.py compares stopped and undisturbed runs."""

import signal
from functools import partial
from pathlib import Path

import pytest

from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.callbacks.ema import Ema
from imagenet_opt.callbacks.preemption import Preemption
from imagenet_opt.errors import Preempted
from tests.callbacks.conftest import AtCall, Project, opened


@pytest.mark.parametrize(
    ("hook", "call", "step"), [("on_before_optimizer_step", 3, 3), ("on_validation_batch_end", 1, 10)]
)
def test_a_signal_saves_the_finished_steps_and_a_resume_trains_the_others(
    project: Project, tmp_path: Path, hook: str, call: int, step: int
) -> None:
    told = AtCall(hook, call, partial(signal.raise_signal, signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted, match="SIGTERM"):
        project.fit(Ema(decay=0.5), told, Preemption(), Checkpoint(folder=str(tmp_path)))
    assert signal.getsignal(signal.SIGTERM) == before
    assert opened(tmp_path / "last.ckpt")["global_step"] == step
    callbacks = Ema(decay=0.5), Preemption(), Checkpoint(folder=str(tmp_path))
    assert len(project.fit(*callbacks, ckpt_path=tmp_path / "last.ckpt").seen) == 20 - step
