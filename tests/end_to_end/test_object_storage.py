"""A run on s3://, killed with kill -9 and resumed, ends exactly as an undisturbed run on the local folder."""

from pathlib import Path

import pytest

from tests.conftest import write_images
from tests.object_server import upload
from tests.test_killed import train_until_killed
from tests.test_train import assert_same, metrics, opened, train

pytestmark = pytest.mark.slow  # train.py is started three times


def test_a_killed_run_on_objects_ends_as_a_run_on_the_folder(bucket: str, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", num_classes=3, per_class=16)
    url = upload(images, f"{bucket}/in1k")
    options = ("data.num_workers=2", "data.batch_size=8", "checkpoint.every_n_steps=2")
    local = train(tmp_path / "local", images, *options)
    assert local.returncode == 0, local.stderr

    killed = train_until_killed(tmp_path / "run", url, *options)
    assert "48 images below" not in killed.stdout

    resumed = train(tmp_path / "run", url, *options, "data.num_workers=0")  # a server of workers takes seconds
    assert resumed.returncode == 0, resumed.stderr
    assert "at step 4" in resumed.stdout and f"48 images below {url}/train, as listed on" in resumed.stdout
    assert_same(opened(tmp_path / "local/last.ckpt"), opened(tmp_path / "run/last.ckpt"))
    assert metrics(tmp_path / "local") == metrics(tmp_path / "run")
