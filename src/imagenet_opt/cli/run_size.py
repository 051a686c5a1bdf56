"""How large the run of a configuration is: its processes, its images, and whether it is for a GPU."""

import torch
from omegaconf import DictConfig, OmegaConf


def wants_gpu(config: DictConfig) -> bool:
    """Whether the run takes a GPU where there is one."""
    return config.trainer.accelerator in ("auto", "gpu", "cuda")


def device_of(config: DictConfig) -> torch.device:
    """On which this process trains; of several GPUs the current one."""
    on_gpu = torch.cuda.is_available() and wants_gpu(config)
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def num_processes(config: DictConfig, device: torch.device) -> tuple[int, int]:
    """Of the run that is tuned: on one node, and in all."""
    devices = config.trainer.devices
    if OmegaConf.is_list(devices):
        local = len(devices)
    elif str(devices).isdecimal() and int(devices) > 0:
        local = int(devices)
    else:
        local = torch.cuda.device_count() if device.type == "cuda" else 1
    return local, local * int(config.trainer.get("num_nodes", 1))


def largest_size(config: DictConfig) -> int:
    """Pixels of the largest training images of the run."""
    growing = config.callbacks.get("resolution_schedule")
    return int(config.data.image_size if growing is None else max(growing.start, growing.end))
