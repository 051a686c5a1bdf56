"""A fit leaves a timeline whose events and samples are the fit's own, and is never disturbed by it."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from imagenet_opt.callbacks.timeline import Timeline
from imagenet_opt.measure.telemetry.timeline import KINDS, read_timeline


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_events_are_those_of_the_fit_and_a_resumed_fit_appends(project, tmp_path: Path) -> None:
    began = time.time()
    project.fit(Timeline(folder=tmp_path), ModelCheckpoint(dirpath=tmp_path, save_last=True), max_epochs=1)
    project.fit(Timeline(folder=tmp_path), ModelCheckpoint(dirpath=tmp_path), ckpt_path=tmp_path / "last.ckpt")
    found = read_timeline(tmp_path / "timeline")
    counts = {kind: len(found.spans(kind)) for kind in KINDS}
    rows = len(project.logger.rows)
    assert counts.pop("checkpoint") >= 2
    assert counts == {"other": 0, "fetch": 20, "step": 20, "validation": 2, "logging": rows, "epoch": 2}
    steps = found.events["step"][found.events["kind"] == KINDS.index("step")]
    assert steps.tolist() == list(range(20))
    for kind in KINDS:
        begin, end = found.spans(kind).T
        assert np.all(begin >= began) and np.all(begin <= end) and np.all(end <= time.time())
    epochs = found.spans("epoch")
    assert np.all((found.spans("step")[:10] >= epochs[0, 0]) & (found.spans("step")[:10] <= epochs[0, 1]))
    assert np.all(np.diff(found.samples["unix_seconds"]) > 0)
    assert "recorder" not in [thread.name for thread in threading.enumerate()]


def test_a_folder_that_cannot_be_written_is_one_warning(
    project, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "timeline").touch()
    project.fit(Timeline(folder=tmp_path))
    assert project.trainer.global_step == 20
    assert len([message for message in caplog.messages if "timeline" in message]) == 1
