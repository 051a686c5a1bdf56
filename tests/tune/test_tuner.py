"""What is tuned where the configured batch does not fit at once."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from imagenet_opt.errors import OutOfMemory
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.probe.device_steps import rate
from imagenet_opt.probe.memory import job_of
from imagenet_opt.tune.device import Device
from imagenet_opt.tune.tuner import Tuning, tune_device, with_number
from tests.config.configs import composed, tiny
from tests.conftest import hold_images, loading, write_images


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_a_rate_is_of_the_requested_batch(images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_images(3, monkeypatch)
    config = tiny(tmp_path, images_root, "model.num_classes=3")
    with pytest.raises(OutOfMemory, match=r"^6 images at once do not fit .* set model\.micro_batch_size=3, "):
        rate(job_of(config, str(tmp_path)) | {"seconds": 0.05})
    config.model.micro_batch_size = 3
    timing = rate(job_of(config, str(tmp_path)) | {"seconds": 0.05})
    assert min(timing["windows"]) > 0 and timing["compile_seconds"] is None


def holding(**room: int) -> Callable[..., dict[str, Any]]:
    """In the place of processes: a device that holds so many images at once, by precision, and likes mixed."""

    def answer(function: str, job: dict[str, Any], **limits: Any) -> dict[str, Any]:
        config = job["config"]
        precision = config["trainer"]["precision"].replace("32-true", "full")
        at_once = config["model"]["micro_batch_size"] or config["data"]["batch_size"]
        fits = at_once <= room[precision]
        if function.endswith(".fits"):
            return {"peak_gib": 1.0 if fits else None}
        if not fits:
            raise OutOfMemory(f"{at_once} images at once do not fit; set model.micro_batch_size={at_once // 2}")
        return {"windows": [150.0 if precision == "mixed" else 100.0] * 2, "compile_seconds": None}

    return answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "micro", "rate"),
    [
        ({"full": 2, "mixed": 6}, None, None),  # what it takes of whole batches was not measured
        ({"full": 2, "mixed": 3}, 2, 150.0),
        ({"full": 6, "mixed": 6}, None, 150.0),
    ],
)
def test_a_batch_that_does_not_fit_is_cut_before_anything_is_compared(
    room: dict[str, int],
    micro: int | None,
    rate: float | None,
    images_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr("imagenet_opt.probe.memory.call_isolated", holding(**room))
    typed = (f"data.root={images_root}", "trainer.accelerator=cpu", "trainer.precision=32-true", "data.batch_size=6")
    device = Device(typed, 3, Deadline(600), lambda what: None)
    config = device.config(())
    data = SimpleNamespace(train=range(39), loading=loading())
    testbed: Any = SimpleNamespace(config=config, device=torch.device("cpu"), loading=data.loading, data=data)
    tuning = Tuning()
    assert tune_device(tuning, device, testbed, 0.1, is_auto=False) == rate
    cut = () if micro is None else (f"model.micro_batch_size={micro}",)
    assert "trainer.precision=mixed" in tuning.overrides
    assert tuple(word for word in tuning.overrides if "batch" in word) == cut
    notes = ["the batch does not fit at once: the device alone is measured with model.micro_batch_size=2"]
    assert tuning.notes == (notes if room["full"] < 6 else [])
    assert device.overrides == typed, "the search for the batch starts as configured"


@pytest.mark.parametrize(("epoch", "start"), [(12, 2), (66, 16)])
def test_the_batch_to_begin_with_is_of_the_epoch_that_is_trained(
    epoch: int, start: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = write_images(tmp_path / "images", num_classes=3, per_class=22)
    typed = (f"data.root={root}", "data.batch_size=auto", f"data.samples_per_epoch={epoch}")
    overrides, testbed = with_number(typed, composed(tmp_path, *typed))
    assert overrides == (*typed, f"data.batch_size={start}") and testbed.loading.batch_size == start
