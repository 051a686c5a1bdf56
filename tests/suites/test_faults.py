"""The fault that loses most, once; all of them: `python -m suites.faults.suite`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from suites.faults.checkpoint_cases import flip_bit
from suites.faults.results import step_files
from suites.faults.runs import Lab, Trial
from tests.processes import Forked

pytestmark = pytest.mark.slow

EPOCHS = 3


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    lab = Lab(tmp_path / "work", Forked)
    trial = Trial(lab, "killed", 0, kills=1, epochs=EPOCHS)
    yield trial
    trial.clear_up()
    lab.clear_up()


def test_killed_and_its_newest_checkpoint_damaged_a_run_ends_bit_for_bit_as_if_not(trial: Trial) -> None:
    run = trial.start("data.num_workers=2")
    trial.lab.begin_clean(EPOCHS)  # meanwhile
    run.until_step(14)
    run.kill()
    newest = step_files(trial.run_folder)[-1]
    flip_bit(newest, newest.stat().st_size // 2)
    run = trial.start("data.num_workers=0").ends(0, "checkpoint skipped")  # whose number does not matter
    trial.is_like_clean()
    assert 0 < run.resumed_at < int(newest.stem.removeprefix("step_"))
