"""The cheapest faults, once each; all of them: `python -m suites.faults.suite`."""

from collections.abc import Iterator

import pytest

from suites.faults.checkpoint_cases import flip_bit
from suites.faults.results import step_files
from suites.faults.runs import Lab, Trial
from suites.faults.storage_cases import files_vanish
from tests.processes import Forked

pytestmark = pytest.mark.slow

EPOCHS = 6


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab") / "work", Forked)
    lab.begin_clean(EPOCHS)  # it runs while the first test does
    yield lab
    lab.clear_up()


@pytest.fixture
def trial(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Trial]:
    trial = Trial(lab, request.function.__name__, 0, kills=3, epochs=EPOCHS)
    yield trial
    trial.clear_up()


def test_killed_three_times_and_its_newest_checkpoint_damaged_it_ends_bit_for_bit_as_if_not(trial: Trial) -> None:
    for step, num_workers in ((9, 2), (14, 1), (27, 0)):  # whose number does not matter
        run = trial.start(f"data.num_workers={num_workers}")
        run.until_step(step)
        run.kill()
    newest = step_files(trial.run_folder)[-1]
    flip_bit(newest, newest.stat().st_size // 2)
    run = trial.goes_on("checkpoint skipped")
    assert 0 < run.resumed_at < int(newest.stem.removeprefix("step_"))


def test_files_that_turn_bad_in_mid_epoch_are_skipped_with_one_warning_each(trial: Trial) -> None:
    files_vanish(trial)


def test_a_resume_with_other_batches_is_refused_in_one_line_and_changes_nothing(lab: Lab, trial: Trial) -> None:
    trial.run_folder = trial.seen = lab.clean(EPOCHS).run_folder
    files = [trial.run_folder / name for name in ("last.ckpt", "metrics.csv")]
    before = [file.read_bytes() for file in files]
    run = trial.start("data.batch_size=4").ends(2, "^CheckpointMismatch: .*batch")
    assert len(run.errors) == 1
    assert before == [file.read_bytes() for file in files]
