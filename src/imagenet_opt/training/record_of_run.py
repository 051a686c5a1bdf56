"""What record.json says about a run that has ended."""

import hashlib
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.config.compose import task_overrides
from imagenet_opt.config.overrides import last_value
from imagenet_opt.machine import cpu_name, versions
from imagenet_opt.run.record import hash_of_recipes
from imagenet_opt.training.build_run import Run


def record_of(config: DictConfig, run: Run, numbers: dict[str, float]) -> dict[str, Any]:
    """The fields of RunRecord. config: as it is in the run folder. numbers: of the whole run."""
    trainer, record, num_images = run.trainer, run.model.record, len(run.data.train)
    steps, batch = trainer.global_step, run.data.loading.batch_size * trainer.world_size
    hours, price = sum(seconds for _, seconds in record["starts"]) / 3600, config.get("price_per_hour")
    device = trainer.strategy.root_device
    return {
        "format": 1,
        "experiment": last_value(task_overrides(), "experiment"),
        "recipe_sha256": hash_of_recipes(record["recipes"]),
        "config_sha256": hashlib.sha256(OmegaConf.to_yaml(config).encode()).hexdigest(),
        "versions": versions(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "num_gpus": trainer.world_size,
        "num_machines": trainer.num_nodes,
        "train_images": num_images,
        "val_images": len(run.data.val),
        "epochs": steps * batch / num_images,
        "steps": steps,
        "global_batch": batch,
        "samples": steps * batch,
        "starts": record["starts"],
        "hours": hours,
        "price_per_hour": price,
        "dollars": None if price is None else price * trainer.num_nodes * hours,
        "numbers": numbers,
    }
