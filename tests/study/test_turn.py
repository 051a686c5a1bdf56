"""Turns in this process, on a device that holds a few images."""

from pathlib import Path

import pytest

from imagenet_opt.study.losses import LossJob, train
from imagenet_opt.study.turn import StudyTurn, TurnJob, measured
from tests.conftest import hold_images
from tests.study.studies import TINY


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    own = (f"data.cache_dir={tmp_path}/cache", "data.num_train=100", "data.num_val=20", "data.num_workers=0")
    return (*TINY, *own, "trainer.accelerator=cpu")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_turn_measures_all_facts_and_keeps_its_micro_batches(
    small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_images(2, monkeypatch)
    overrides = (*small, "model.micro_batch_size=2")
    turn = StudyTurn(**measured(TurnJob(overrides, 0.1, cold=False)))
    assert turn.batch_size == 4 and turn.compile_seconds is None
    assert min(turn.full, turn.compute, turn.memory_gib) > 0 and 0 < turn.busy <= 1
    assert len(train(LossJob(overrides, steps=2))) == 2
