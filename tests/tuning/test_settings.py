"""Which settings are tried: of the device, of the batch and of the loader."""

from pathlib import Path

import pytest
import torch

from imagenet_opt.errors import OutOfMemory
from imagenet_opt.probe.device_steps import rate
from imagenet_opt.probe.memory import job_of
from imagenet_opt.tuning.settings import formats, ways
from tests.config.configs import composed, tiny
from tests.conftest import hold_images

EAGER = ("callbacks.acceleration.compile=false", "callbacks.acceleration.cuda_graph=false")


def test_only_what_differs_on_a_cpu_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    config = composed(tmp_path, "data.root=/data", "trainer.accelerator=cpu", *EAGER)
    (first,) = formats(config)  # mixed is float32 there
    assert first["trainer.precision"] == "mixed" and not first["callbacks.acceleration.channels_last"]
    assert [way["callbacks.acceleration.compile"] for way in ways(config)] == [True]


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_a_rate_is_of_the_requested_batch(images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_images(3, monkeypatch)
    config = tiny(tmp_path, images_root, "model.num_classes=3")
    with pytest.raises(OutOfMemory, match=r"^6 images at once .* model\.micro_batch_size=3"):
        rate(job_of(config, str(tmp_path)) | {"seconds": 0.05})
    config.model.micro_batch_size = 3
    timing = rate(job_of(config, str(tmp_path)) | {"seconds": 0.05})
    assert min(timing["windows"]) > 0 and timing["compile_seconds"] is None
