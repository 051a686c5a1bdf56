"""Reads the rates of GPUs from the recorded profiles. A rate counts only for the settings that it was recorded with."""

from omegaconf import DictConfig, OmegaConf

from imagenet_opt.config.overrides import config_folder

_SETTINGS = (
    *("trainer.precision", "trainer.deterministic", "data.batch_size", "model.name", "model.blurpool"),
    *(f"callbacks.acceleration.{name}" for name in ("compile", "compile_mode", "cuda_graph", "channels_last", "tf32")),
    "callbacks.acceleration.gradient_checkpointing",
)
"""Keys that decide the rate of a GPU."""


UNRATED = (
    "the rate of a healthy GPU of this kind with these settings is unknown; imagenet-opt doctor --record-profile "
    "stores it"
)


def speed_settings(config: DictConfig) -> str:
    """The settings that decide the rate of a GPU, as overrides."""
    return " ".join(f"{key}={OmegaConf.select(config, key)}" for key in _SETTINGS)


def recorded_rate(gpu: str, config: DictConfig) -> float | None:
    """Images per second, at 224 pixels, that `imagenet-opt doctor --record-profile` measured on a GPU with this name
    and these settings; None if nobody has."""
    profiles = [OmegaConf.load(file).callbacks.rehearsal for file in (config_folder() / "rehearse").glob("*.yaml")]
    own = [profile for profile in profiles if profile.name == gpu and not profile.estimate]
    settings = speed_settings(config)
    return max((float(each.images_per_second) for each in own if settings in str(each.source)), default=None)
