"""Small configurations."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from imagenet_opt.config.overrides import config_folder


def composed(tmp_path: Path, *overrides: str) -> DictConfig:
    """The configuration of train.py, for a CPU, into a folder of the test."""
    own = ["~hydra", f"run_folder={tmp_path}/run", f"data.cache_dir={tmp_path}/cache", "logger=csv"]
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose("train", [*own, "trainer.accelerator=cpu", "trainer.devices=1", *overrides])


def tiny(tmp_path: Path, root: Path, *overrides: str) -> DictConfig:
    small = ("model.name=test_resnet", "data.image_size=32", "data.batch_size=6", "data.num_workers=0")
    return composed(tmp_path, f"data.root={root}", *small, *overrides)
