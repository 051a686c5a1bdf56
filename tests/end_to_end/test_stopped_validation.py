"""A run with all default callbacks that is stopped in its validations ends like an undisturbed run."""

import os
import shlex
from pathlib import Path

import pytest

from tests.processes import run_forked
from tests.test_train import REPOSITORY, assert_same, environment, metrics, opened, train

STOPPER = '''
import os, signal
from pathlib import Path
from lightning.pytorch import Callback

class Stopper(Callback):
    """Sends SIGTERM to process 0 at each of `places`, a hook and a step, once in all starts of the run."""
    def __init__(self, folder, places):
        self.folder, self.places = folder, places
    def on_train_batch_start(self, trainer, *_):
        self.stop(f"step {trainer.global_step}", trainer)
    def on_validation_batch_start(self, trainer, *_):
        self.stop(f"validation {trainer.global_step}", trainer)
    def stop(self, place, trainer):
        mark = Path(self.folder, place)
        if trainer.is_global_zero and place in self.places and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGTERM)
'''
LAST_STEP = "step 11"
MID_EPOCH, END_OF_EPOCH, END_OF_RUN = "validation 3", "validation 6", "validation 12"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_processes", "places"),
    [
        (1, [MID_EPOCH, END_OF_EPOCH, END_OF_RUN]),
        (2, [MID_EPOCH, END_OF_EPOCH, LAST_STEP]),  # two processes stop one batch late: in the last validation
    ],
)
def test_a_run_that_is_stopped_in_validations_resumes_by_the_printed_command(
    num_processes: int, places: list[str], images_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "stopper.py").write_text(STOPPER)
    batch_size = 6 // num_processes
    options = (
        *(f"trainer.devices={num_processes}", f"data.batch_size={batch_size}", "trainer.val_check_interval=3"),
        "checkpoint.every_minutes=1e-9",  # saves at logging steps
    )
    undisturbed = train(tmp_path / "undisturbed", images_root, *options)
    assert undisturbed.returncode == 0, undisturbed.stderr

    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    stopper = (
        *("allow_targets=[stopper]", "+callbacks.stopper._target_=stopper.Stopper"),
        *(f"+callbacks.stopper.folder={tmp_path}", f"+callbacks.stopper.places=[{','.join(places)}]"),
    )
    done = train(tmp_path / "run", images_root, *options, *stopper, PYTHONPATH=path)
    for place in places:
        assert (done.returncode, (tmp_path / place).exists()) == (75, True), done.stderr
        python, script, *arguments = shlex.split(done.stderr.split("to resume:\n")[1].splitlines()[0])
        assert (python, Path(script)) == ("python", REPOSITORY / "train.py")
        done = run_forked([script, *arguments], cwd=tmp_path, environment=environment(tmp_path, PYTHONPATH=path))
    assert done.returncode == 0, done.stderr
    assert_same(*[opened(tmp_path / name / "last.ckpt") for name in ("undisturbed", "run")])
    assert metrics(tmp_path / "undisturbed") == metrics(tmp_path / "run")
