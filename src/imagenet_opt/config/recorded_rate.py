"""Reads the rates of GPUs from the recorded profiles. A rate counts only for the settings that it was recorded with."""

from dataclasses import dataclass

import torch
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.config.overrides import config_folder

_SETTINGS = (
    *("trainer.precision", "trainer.deterministic", "data.batch_size", "model.name", "model.blurpool"),
    *(f"callbacks.acceleration.{name}" for name in ("compile", "compile_mode", "cuda_graph", "channels_last", "tf32")),
    "callbacks.acceleration.gradient_checkpointing",
)
"""Keys that decide the rate of a GPU."""


@dataclass(frozen=True)
class Recorded:
    """Rate of a GPU at 224 pixels. source: says the settings."""

    images_per_second: float
    source: str


def speed_settings(config: DictConfig) -> str:
    """The settings that decide the rate of a GPU, as overrides."""
    return " ".join(f"{key}={OmegaConf.select(config, key)}" for key in _SETTINGS)


def recorded(gpu: str) -> list[Recorded]:
    """What `imagenet-opt doctor --record-profile` measured on a GPU with this name."""
    profiles = [OmegaConf.load(file).callbacks.rehearsal for file in (config_folder() / "rehearse").glob("*.yaml")]
    own = (profile for profile in profiles if profile.name == gpu and not profile.estimate)
    return [Recorded(float(profile.images_per_second), str(profile.source)) for profile in own]


def recorded_rate(gpu: str, config: DictConfig) -> float | None:
    """Images per second of this GPU with these settings, if they were recorded."""
    rates = [each.images_per_second for each in recorded(gpu) if speed_settings(config) in each.source]
    return max(rates, default=None)


def why_unrated(config: DictConfig, device: torch.device) -> str:
    """Why `recorded_rate` does not know this device."""
    record = "imagenet-opt doctor --record-profile stores the rate of a healthy GPU"
    if device.type == "cuda" and (others := recorded(torch.cuda.get_device_name(device))):
        return f"the recorded rate of this GPU is of other settings ({others[0].source}); {record}"
    return f"the rate of a healthy GPU of this kind is unknown; {record}"
