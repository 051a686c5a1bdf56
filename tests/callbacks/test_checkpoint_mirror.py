"""When the checkpoint callback uploads, waits for uploads and refuses a mirror."""

from pathlib import Path

import pytest

from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.errors import ConfigError, StorageFailed
from tests.callbacks.conftest import Project
from tests.faulty_proxy import FaultyProxy
from tests.object_server import client

pytestmark = pytest.mark.slow


def mirrored(url: str, step: int) -> bytes:
    key = f"checkpoints/step_{step:08d}.ckpt"
    content: bytes = client().get_object(Bucket=url.removeprefix("s3://"), Key=key)["Body"].read()
    return content


def test_a_resumed_run_uploads_the_checkpoint_that_the_mirror_lacks_also_if_nothing_is_left_to_train(
    project: Project, bucket: str, tmp_path: Path
) -> None:
    project.fit(Checkpoint(folder=str(tmp_path)), max_epochs=1)
    content = (tmp_path / "last.ckpt").read_bytes()
    again = Checkpoint(folder=str(tmp_path), mirror=bucket)
    project.fit(again, ckpt_path=tmp_path / "last.ckpt", max_epochs=1)
    assert mirrored(bucket, 10) == content


def test_a_mirror_that_takes_no_checkpoint_is_refused_before_training(
    project: Project, bucket: str, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(url: str, error: type[Exception], reason: str) -> None:
        with pytest.raises(error) as caught:
            project.fit(Checkpoint(folder=str(tmp_path), mirror=url))
        assert project.trainer.global_step == 0
        message = str(caught.value)
        assert "\n" not in message and url in message and "callbacks.checkpoint.mirror" in message and reason in message

    refused(f"{bucket}-none/run", StorageFailed, "no such bucket")
    proxy.fault = lambda number, path: "403"
    refused(bucket, StorageFailed, "403 AccessDenied")
    (tmp_path / "obstore.py").write_text("raise ModuleNotFoundError(name='obstore')")
    monkeypatch.syspath_prepend(tmp_path)
    refused(bucket, ConfigError, "not installed: pip install")
