"""A run on a pack in a bucket, with a mirror, that loses its machine ends as an undisturbed run on a local pack."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from imagenet_opt.cli.main import run
from tests.conftest import write_images
from tests.object_server import objects, upload
from tests.test_train import assert_same, metrics, opened, train

pytestmark = pytest.mark.slow  # train.py is started three times

OPTIONS = ("data.batch_size=8", "data.shuffle=block", "callbacks.checkpoint.every_n_steps=2", "trainer.max_epochs=1")
KILLER = '''
import os, signal
import psutil
from imagenet_opt.run.checkpoint.writer import wait_for_writers
from lightning.pytorch import Callback

class Killer(Callback):
    """Kills all processes of the run at step 3, after the mirror has the checkpoint of step 2."""
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        wait_for_writers(60)
        if trainer.global_step == 3:
            trainer.checkpoint_callback._uploads.wait()
            for child in psutil.Process().children(recursive=True):
                child.kill()
            os.kill(os.getpid(), signal.SIGKILL)
'''


def test_a_run_that_loses_its_machine_ends_as_an_undisturbed_run(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    images = write_images(tmp_path / "images", num_classes=3, per_class=11)  # four steps
    run("pack", [f"data.root={images}", f"out={tmp_path}/packed"])
    upload(tmp_path / "packed", f"{bucket}/packed")
    undisturbed = train(tmp_path / "undisturbed", tmp_path / "packed", *OPTIONS)
    assert undisturbed.returncode == 0, undisturbed.stderr

    options = (*OPTIONS, f"callbacks.checkpoint.mirror={bucket}/run")
    (tmp_path / "killer.py").write_text(KILLER)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    killer = ("allow_targets=[killer]", "+callbacks.killer._target_=killer.Killer")
    killed = train(tmp_path / "lost", f"{bucket}/packed", *options, *killer, PYTHONPATH=path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    shutil.rmtree(tmp_path / "lost")

    resumed = train(tmp_path / "new", f"{bucket}/packed", *options)
    assert resumed.returncode == 0, resumed.stderr
    assert "step 2" in resumed.stdout and f"{bucket}/run" in resumed.stdout
    for name in ("last.ckpt", "best.ckpt"):
        assert_same(opened(tmp_path / "undisturbed" / name), opened(tmp_path / "new" / name))
    assert metrics(tmp_path / "undisturbed") == metrics(tmp_path / "new")
    saved = [f"checkpoints/step_0000000{step}.ckpt" for step in (2, 4)]
    assert sorted(objects(f"{bucket}/run")) == ["best.ckpt", *saved, "metrics.csv", "record.json"]
    run("report", ["--verify", str(tmp_path / "new")])
