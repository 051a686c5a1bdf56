"""The configuration and the command line of the run of train.py in this process, and their record in its folder."""

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.errors import RunFolderError

RECORD = ".hydra"
"""Folder of the configuration in a run folder."""


def has_other_overrides(folder: Path) -> bool:
    """Whether `record_configuration` wrote other overrides into `folder` than this run of train.py has."""
    file = folder / RECORD / "overrides.yaml"
    if not (HydraConfig.initialized() and file.is_file()):
        return False
    texts = file.read_text(errors="replace"), OmegaConf.to_yaml(HydraConfig.get().overrides.task)
    before, now = ([line for line in text.splitlines() if not line.startswith("- resume_from=")] for text in texts)
    return before != now


def record_configuration(config: DictConfig, folder: Path) -> None:
    """Write the configuration into `folder`, as Hydra does where hydra.output_subdir is not null. Hydra writes before
    the run has locked its folder, so a refused start would replace the configuration of the run that trains there.
    Raises RunFolderError."""
    if HydraConfig.initialized():
        hydra: DictConfig = HydraConfig.instance().cfg  # type: ignore[assignment]
        parts = {"config": config, "hydra": hydra, "overrides": hydra.hydra.overrides.task}
        try:
            (folder / RECORD).mkdir(exist_ok=True)
            for name, part in parts.items():
                write_atomically(folder / RECORD / f"{name}.yaml", OmegaConf.to_yaml(part))
        except OSError as error:
            raise RunFolderError(
                f"cannot write {folder / RECORD} ({error.strerror}); make room there, or choose another folder with "
                "hydra.run.dir=FOLDER"
            ) from error
