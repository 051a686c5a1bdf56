"""Train a network on folders of images: `python train.py --help`."""

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

import hydra
import psutil
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from imagenet_opt.cli.main import quiet_pipe
from imagenet_opt.cli.mistakes import check_flags, report_mistakes
from imagenet_opt.config.compose import prepare_hydra
from imagenet_opt.config.dataset import check_folders
from imagenet_opt.config.overrides import complete, config_folder, follow_job
from imagenet_opt.data.index.layout import root_of
from imagenet_opt.processes import start_server
from imagenet_opt.run.stop.signals import stop
from imagenet_opt.training.folder_lock import removed_if_refused


def train(config: DictConfig) -> None:
    """Train in this process. A refused run leaves no folder."""
    began = psutil.Process().create_time()
    with removed_if_refused(Path(config.run_folder)):
        check_folders(config)
        if isinstance(root_of(config.data.get("root")), str):
            start_server()  # its imports take as long as those of this process
        if sys.stderr.isatty() and os.environ.get("LOCAL_RANK", "0") == "0":
            print("loading torch and Lightning ...", file=sys.stderr, flush=True)
        gc.disable()  # during imports collections take a second and free nothing
        if "wandb" in (config.get("logger") or {}):
            with suppress(ImportError):
                import wandb.sdk.launch  # noqa: F401  W&B imports it in each run, which takes longer after torch
        from imagenet_opt.training.fit import fit

        gc.enable()
        fit(config, began=began)


@hydra.main(config_path=str(config_folder()), config_name="train", version_base="1.3")
def main(config: DictConfig) -> float | None:
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        from imagenet_opt.sweep.job import run_job

        stop.restore()
        return run_job(Path(__file__))
    report_mistakes(lambda: train(config))  # inside Hydra, which prints another line before errors that pass through it
    return None


if __name__ == "__main__":
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # without it Hydra replaces errors before report_mistakes sees them
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait starve the loader's workers
    stop.install()
    report_mistakes(lambda: check_flags(sys.argv[1:]))
    sys.argv[1:] = report_mistakes(lambda: follow_job(complete(sys.argv[1:])))
    report_mistakes(lambda: prepare_hydra(sys.argv[1:]))
    with quiet_pipe():
        report_mistakes(main)
