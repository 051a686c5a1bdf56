"""Small configurations, and runs of them."""

from pathlib import Path

from omegaconf import DictConfig

from imagenet_opt.training.build_run import Run, build_run
from tests import conftest


def composed(tmp_path: Path, *overrides: str) -> DictConfig:
    """The configuration of train.py, for a CPU, into a folder of the test."""
    base = ("~hydra", f"run_folder={tmp_path}/run", f"data.cache_dir={tmp_path}/cache", "logger=csv")
    return conftest.composed(*base, "trainer.accelerator=cpu", "trainer.devices=1", *overrides)


def tiny(tmp_path: Path, root: Path, *overrides: str) -> DictConfig:
    small = ("model.name=test_resnet", "data.image_size=32", "data.batch_size=6", "data.num_workers=0")
    return composed(tmp_path, f"data.root={root}", *small, *overrides)


def fitted(config: DictConfig) -> Run:
    """Starts the run of this configuration, or resumes it."""
    run = build_run(config)
    run.trainer.fit(run.model, datamodule=run.data, ckpt_path=run.checkpoint, weights_only=True)
    return run
