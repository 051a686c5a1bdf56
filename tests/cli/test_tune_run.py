"""What is tuned where the configured batch does not fit at once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from imagenet_opt.cli.tune_memory import MemoryTrials, job_of
from imagenet_opt.cli.tune_run import Tuning, _compute
from imagenet_opt.cli.tune_trial import rate
from imagenet_opt.cli.tune_turns import Changes, Turns
from imagenet_opt.errors import OutOfMemory
from imagenet_opt.measure.deadline import Deadline
from imagenet_opt.measure.interleave import TurnFailed
from tests.cli.test_build import tiny
from tests.conftest import hold_images, loading

WHY = "out of memory at data.batch_size=6; lower it or set model.micro_batch_size"


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_a_rate_is_of_the_batch_that_was_asked_for(
    images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_images(3, monkeypatch)
    config = tiny(tmp_path, images_root, "model.num_classes=3")
    with pytest.raises(OutOfMemory, match=f"^{WHY}$"):
        rate(job_of(config, str(tmp_path)) | {"seconds": 0.05})
    config.model.micro_batch_size = 3
    found = rate(job_of(config, str(tmp_path)) | {"seconds": 0.05})
    assert min(found["windows"]) > 0 and found["compile_seconds"] is None


class TwoImages(Turns):
    """A device that holds two images."""

    def rate(self, changes: Changes, seconds: float, *, share: float, name: str) -> float:
        micro = self.config(changes).model.micro_batch_size
        if micro is None or micro > 2:
            raise TurnFailed(WHY)
        return 100.0


def test_a_batch_that_does_not_fit_is_cut_before_anything_is_compared(
    images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        MemoryTrials, "_try", lambda self, batch, micro: {"peak_gib": 1.0 if (micro or batch) < 3 else None}
    )
    given = (f"data.root={images_root}", "trainer.accelerator=cpu", "data.batch_size=6")
    turns = TwoImages(given, 3, Deadline(60), lambda what: None)
    config = turns.config(())
    patient: Any = SimpleNamespace(
        config=config,
        device=torch.device("cpu"),
        how=loading(),
        data=SimpleNamespace(train=range(39)),
    )
    found = Tuning(config, None)
    compute = _compute(found, turns, patient, 0.1)
    assert compute.rate == 100.0 and compute.changes == ()
    assert found.notes == ["the batch does not fit at once: the device alone is measured with model.micro_batch_size=2"]
    assert turns.overrides == given, "the batch is looked for as configured"
