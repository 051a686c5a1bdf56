"""A run with a mirror that loses its machine and its run folder ends exactly as an undisturbed run."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.object_server import client
from tests.processes import run_train
from tests.test_train import TINY, assert_same, environment, metrics, opened

pytestmark = pytest.mark.slow  # train.py is started four times

DEMO = ("data=demo", "data.num_train=36", "data.num_val=12", "checkpoint.every_n_steps=2")  # 6 batches an epoch
KILLER = '''
import os, signal, time
import psutil
from imagenet_opt.run.checkpoint.writer import wait_for_writers
from lightning.pytorch import Callback

class Killer(Callback):
    """Kills all processes of the run at step 9, after the mirror has the checkpoint of step 8."""
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        wait_for_writers(60)
        if trainer.global_step == 9:
            while not trainer.checkpoint_callback.mirrored.endswith(", step 8"):
                time.sleep(0.01)
            for child in psutil.Process().children(recursive=True):
                child.kill()
            os.kill(os.getpid(), signal.SIGKILL)
'''


def train(folder: Path, *overrides: str, **more: str) -> "subprocess.CompletedProcess[str]":
    arguments = [*TINY, *DEMO, f"hydra.run.dir={folder}", *overrides]
    return run_train(arguments, cwd=folder.parent, environment=environment(folder.parent, **more))


def test_a_run_that_loses_its_machine_ends_as_an_undisturbed_run(bucket: str, tmp_path: Path) -> None:
    undisturbed = train(tmp_path / "undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stderr

    mirror = f"checkpoint.mirror={bucket}/run"
    (tmp_path / "killer.py").write_text(KILLER)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    killer = ("allow_targets=[killer]", "+callbacks.killer._target_=killer.Killer")
    killed = train(tmp_path / "lost", mirror, *killer, PYTHONPATH=path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    shutil.rmtree(tmp_path / "lost")

    resumed = train(tmp_path / "new", mirror)
    assert resumed.returncode == 0, resumed.stderr
    assert "checkpoint.mirror: step 8 (" in resumed.stdout and f"downloaded from {bucket}/run" in resumed.stdout
    assert f"{bucket}/run, step 12" in resumed.stdout  # in the summary
    for name in ("last.ckpt", "best.ckpt"):
        assert_same(opened(tmp_path / "undisturbed" / name), opened(tmp_path / "new" / name))
    assert metrics(tmp_path / "undisturbed") == metrics(tmp_path / "new")
    found = [each["Key"] for each in client().list_objects_v2(Bucket=bucket.removeprefix("s3://"))["Contents"]]
    earlier = found.pop(1)  # one of two, depending on which upload was still running when the next one came
    assert earlier in ("run/checkpoints/step_00000008.ckpt", "run/checkpoints/step_00000010.ckpt")
    newest = "run/checkpoints/step_00000012.ckpt"
    assert found == ["run/best.ckpt", newest, "run/metrics.csv"]

    other = train(tmp_path / "other", mirror, "model.name=test_efficientnet")
    assert other.returncode == 2 and not (tmp_path / "other").exists()
    (line,) = [line for line in other.stderr.splitlines() if "CheckpointMismatch" in line]
    assert f"the checkpoint from {bucket}/run: " in line and "set model.name=test_resnet" in line
