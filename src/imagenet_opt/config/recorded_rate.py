"""Reads the rates of GPUs from the recorded profiles."""

from omegaconf import OmegaConf

from imagenet_opt.config.overrides import config_folder


def recorded_rate(gpu: str) -> float | None:
    """Images per second that `imagenet-opt doctor --record-profile` measured on a GPU with this name, if it did."""
    for file in (config_folder() / "rehearse").glob("*.yaml"):
        profile = OmegaConf.load(file).callbacks.rehearsal
        if profile.name == gpu and not profile.estimate:
            return float(profile.images_per_second)
    return None
