"""Settings that decide the rate of a GPU: settled before a measurement or a plan, and recorded with a measured rate."""

from math import inf

import torch
from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_opt.config.build import image_sizes, num_processes
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.model.shape_compiler import AUTO, earns_compiling, forbids_graph

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


def settle_acceleration(config: DictConfig, num_train: int, device: torch.device) -> None:
    """Replace compile=auto and cuda_graph=auto by what a training of this configuration decides, since a measurement is
    too short to decide.

    num_train: images of the training set. device: of the training. cuda_graph stays "auto" where it is
    possible, so that a failed capture does not end a measurement.
    """
    acceleration = config.callbacks.get("acceleration")
    if acceleration is None:
        return
    num = max(1, num_processes(config, device)[1])  # 0 where devices=auto finds no GPU, as on the machine of a plan
    with open_dict(config):
        if acceleration.get("compile", AUTO) == AUTO:
            acceleration.compile = device.type == "cuda" and _is_long_enough(config, num_train, num)
        if acceleration.get("cuda_graph", AUTO) == AUTO and forbids_graph(
            device=device.type,
            num_processes=num,
            gradient_checkpointing=acceleration.get("gradient_checkpointing", False),
            compile=acceleration.compile,
            compile_mode=acceleration.get("compile_mode", "default"),
        ):
            acceleration.cuda_graph = False


def _is_long_enough(config: DictConfig, num_train: int, num_processes: int) -> bool:
    """Whether a training of this configuration earns compiling on a GPU."""
    epochs, steps = config.trainer.max_epochs, config.trainer.max_steps
    num_images = inf if epochs in (None, -1) else epochs * float(config.data.get("samples_per_epoch") or num_train)
    whole, each = config.data.get("global_batch_size"), config.data.batch_size
    if steps > 0 and (whole is not None or isinstance(each, int)):  # not batch_size=auto
        num_images = min(num_images, steps * (whole or each * num_processes))
    return earns_compiling(num_images, image_sizes(config)[0])


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
