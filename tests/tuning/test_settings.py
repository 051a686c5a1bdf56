"""Which settings are tried: of the device, of the batch and of the loader."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from imagenet_opt.callbacks.acceleration import Acceleration
from imagenet_opt.errors import ConfigError, OutOfMemory
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.probe.device_steps import rate
from imagenet_opt.probe.isolated import Hung
from imagenet_opt.probe.memory import MemoryTrials, job_of
from imagenet_opt.tuning.settings import formats, ways
from tests.config.configs import composed, tiny
from tests.conftest import hold_images

EAGER = ("callbacks.acceleration.compile=false", "callbacks.acceleration.cuda_graph=false")


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagenet_opt.tuning.settings.device_of", lambda config: torch.device("cuda"))


def test_only_what_differs_on_a_cpu_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    config = composed(tmp_path, "data.root=/data", "trainer.accelerator=cpu", *EAGER)
    (first,) = formats(config)  # mixed is float32 there
    assert first["trainer.precision"] == "mixed" and not first["callbacks.acceleration.channels_last"]
    assert [way["callbacks.acceleration.compile"] for way in ways(config)] == [True]


@pytest.mark.parametrize("unfit", ["trainer.devices=2", "callbacks.acceleration.gradient_checkpointing=true"])
def test_a_run_that_cannot_use_a_cuda_graph_tries_none(
    unfit: str, on_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    config = composed(tmp_path, "data.root=/data", *EAGER, unfit)
    assert len(list(formats(config))) == 3
    tried = [way["callbacks.acceleration.compile_mode"] for way in ways(config)]
    assert tried == ["default", "reduce-overhead", "max-autotune"]


def test_every_way_to_compile_for_a_gpu_is_tried_but_the_configured_one(on_gpu: None, tmp_path: Path) -> None:
    config = composed(tmp_path, "data.root=/data", *EAGER)
    tried = list(ways(config))
    assert [tuple(way.values()) for way in tried] == [
        *((False, True), (True, "default", False), (True, "default", True)),
        *((True, "reduce-overhead", False), (True, "max-autotune", False)),
    ]
    for way in tried:
        other = config.copy()
        for key, value in way.items():
            OmegaConf.update(other, key, value)
        Acceleration(**{key.rpartition(".")[2]: value for key, value in way.items()})
        again = list(ways(other))
        assert way not in again and len(again) == len(tried)


@dataclass
class Ending(MemoryTrials):
    """Trials that end with `error`."""

    error: Exception = field(default_factory=TurnFailed)

    def _try(self, batch: int) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (TurnFailed("killed by signal 9"), ""),
        (TurnFailed("killed by signal 6: what():  std::bad_alloc"), ""),
        (Hung("not finished after 600 s"), ""),
        (TurnFailed("ImportError: no timm"), "8 images cannot be tried: ImportError: no timm"),
    ],
)
def test_only_memory_makes_a_batch_too_large(error: Exception, refused: str) -> None:
    trials = Ending(OmegaConf.create(), error=error)
    if refused:
        with pytest.raises(ConfigError, match=refused):
            trials.fits(8)
    else:
        assert not trials.fits(8)


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_a_rate_is_of_the_requested_batch(images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_images(3, monkeypatch)
    config = tiny(tmp_path, images_root, "model.num_classes=3")
    with pytest.raises(OutOfMemory, match=r"^6 images at once .* model\.micro_batch_size=3"):
        rate(job_of(config, str(tmp_path)) | {"seconds": 0.05})
    config.model.micro_batch_size = 3
    timing = rate(job_of(config, str(tmp_path)) | {"seconds": 0.05})
    assert min(timing["windows"]) > 0 and timing["compile_seconds"] is None
