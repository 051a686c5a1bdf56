"""A run of two processes on packed shards, killed with kill -9 and resumed, ends exactly as an undisturbed run."""

import os
import signal
from pathlib import Path

import pytest

from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack
from tests.conftest import write_images
from tests.test_train import assert_same, metrics, opened, train

pytestmark = pytest.mark.slow  # train.py is started three times

KILLER = '''
import os, signal
import psutil
from imagenet_opt.run.checkpoint.writer import wait_for_writers
from lightning.pytorch import Callback

class Killer(Callback):
    """Kills all processes of the run at step 5. Saves that are due while another is written are left out, hence the
    wait at each step."""
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        wait_for_writers(60)
        if trainer.global_step == 5 and trainer.is_global_zero:
            for child in psutil.Process().children(recursive=True):
                child.kill()
            os.kill(os.getpid(), signal.SIGKILL)
'''


def test_a_killed_run_on_shards_resumes_to_the_same_end(tmp_path: Path) -> None:
    images, shards, run = tmp_path / "images", tmp_path / "shards", tmp_path / "run"
    pack(write_images(images, num_classes=3, per_class=16), shards, PackOptions(shard_mb=0.02))
    assert len(list((shards / "train").glob("*.tar"))) > 1
    options = ("trainer.devices=2", "data.batch_size=8", "data.shuffle=block", "callbacks.checkpoint.every_n_steps=2")
    undisturbed = train(tmp_path / "undisturbed", shards, *options)
    assert undisturbed.returncode == 0, undisturbed.stderr

    (tmp_path / "killer.py").write_text(KILLER)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    killer = ("allow_targets=[killer]", "+callbacks.killer._target_=killer.Killer")
    killed = train(run, shards, *options, *killer, PYTHONPATH=path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert opened(run / "last.ckpt")["global_step"] == 4

    resumed = train(run, shards, *options)
    assert resumed.returncode == 0, resumed.stderr
    assert "at step 4" in resumed.stdout
    assert_same(opened(tmp_path / "undisturbed/last.ckpt"), opened(run / "last.ckpt"))
    assert metrics(tmp_path / "undisturbed") == metrics(run)
