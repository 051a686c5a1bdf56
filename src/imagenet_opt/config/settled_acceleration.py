"""Settles compile=auto and cuda_graph=auto of callbacks.acceleration before a run, for measurements and plans."""

from math import inf

import torch
from omegaconf import DictConfig, open_dict

from imagenet_opt.config.build import image_sizes, num_processes
from imagenet_opt.model.compiled_forward import AUTO, earns_compiling, forbids_graph


def settle_acceleration(config: DictConfig, num_train: int, device: torch.device) -> None:
    """Replace "auto" by what a training of this configuration decides, since a measurement is too short to decide.

    num_train: images of the training set. device: of the training. cuda_graph stays "auto" where it is
    possible, so that a failed capture does not end a measurement.
    """
    acceleration = config.callbacks.get("acceleration")
    if acceleration is None:
        return
    num = max(1, num_processes(config, device)[1])  # 0 where devices=auto finds no GPU, as on the machine of a plan
    with open_dict(config):
        if acceleration.get("compile", AUTO) == AUTO:
            acceleration.compile = device.type == "cuda" and is_long_enough(config, num_train, num)
        if acceleration.get("cuda_graph", AUTO) == AUTO and forbids_graph(
            device=device.type,
            num_processes=num,
            gradient_checkpointing=acceleration.get("gradient_checkpointing", False),
            compile=acceleration.compile,
            compile_mode=acceleration.get("compile_mode", "default"),
        ):
            acceleration.cuda_graph = False


def is_long_enough(config: DictConfig, num_train: int, num_processes: int) -> bool:
    """Whether a training of this configuration earns compiling on a GPU."""
    epochs, steps = config.trainer.max_epochs, config.trainer.max_steps
    num_images = inf if epochs in (None, -1) else epochs * float(config.data.get("samples_per_epoch") or num_train)
    whole, each = config.data.get("global_batch_size"), config.data.batch_size
    if steps > 0 and (whole is not None or isinstance(each, int)):  # not batch_size=auto
        num_images = min(num_images, steps * (whole or each * num_processes))
    return earns_compiling(num_images, image_sizes(config)[0])
