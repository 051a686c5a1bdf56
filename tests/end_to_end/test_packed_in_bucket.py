"""A run from a pack that a command wrote into a bucket has the losses of a run from the same pack in a folder."""

from pathlib import Path

import pytest

from imagenet_opt.cli.pack import main as pack
from tests.conftest import write_images
from tests.test_train import assert_same, metrics, opened, train

pytestmark = pytest.mark.slow  # train.py is started twice


def test_a_pack_in_a_bucket_trains_as_in_a_folder(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    images = write_images(tmp_path / "images", num_classes=3, per_class=16)
    places = {"bucket": f"{bucket}/packed", "folder": str(tmp_path / "packed")}
    for place in places.values():
        pack([f"data.root={images}", f"out={place}"])
    for name, place in places.items():
        done = train(tmp_path / name, place, "data.batch_size=8", "data.shuffle=block", "trainer.log_every_n_steps=1")
        assert done.returncode == 0, done.stderr
    losses = [row["train/loss"] for row in metrics(tmp_path / "folder") if row["train/loss"]]
    assert len(losses) == 12 and len(set(losses)) == 12
    assert metrics(tmp_path / "bucket") == metrics(tmp_path / "folder")
    networks = [opened(tmp_path / name / "last.ckpt")["network"] for name in places]
    assert_same(*networks)
