"""One run of train.py, from its configuration to its summary."""

import hashlib
import logging
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.config.compose import record_configuration, task_overrides
from imagenet_opt.config.overrides import last_value
from imagenet_opt.data.loader_workers import explain_worker_death
from imagenet_opt.errors import ConfigError, ImagenetOptError, Preempted, WorkerDied
from imagenet_opt.machine import cpu_name, versions
from imagenet_opt.run.checkpoint import mirror
from imagenet_opt.run.checkpoint.names import step_files
from imagenet_opt.run.checkpoint.restore import is_first
from imagenet_opt.run.hooks import KeepsCheckpoints, callbacks_of
from imagenet_opt.run.loggers.run_logger import run_loggers
from imagenet_opt.run.numbers import METRICS
from imagenet_opt.run.record import RECORD, hash_of_recipes, read_summary, write_record
from imagenet_opt.run.stop.ranks import explain
from imagenet_opt.run.stop.signals import stop
from imagenet_opt.training.build_run import Run, build_run
from imagenet_opt.training.folder_lock import lock_folder
from imagenet_opt.training.preempted import STATUS, clear, record
from imagenet_opt.training.quiet import quiet
from imagenet_opt.training.summary import print_summary, stopped_by, summarize

log = logging.getLogger(__name__)


def fit(config: DictConfig, *, began: float) -> None:
    """Build, train and summarize a run. began: Unix seconds at which the process started.

    Raises ImagenetOptError, and Preempted after a signal or a spot notice, with the command that resumes the run.
    """
    import_seconds = time.time() - began
    quiet()
    lock_folder(Path(config.run_folder).resolve())
    run = build_run(deepcopy(config))
    begin = _Begin(config, run, began)
    callbacks_of(run.trainer).append(begin)
    exit_code = 1
    try:
        _train(run)
        clear(run.folder)  # also where nothing is left to train
        if not begin.done and read_summary(run.folder).get("steps") == run.trainer.global_step:
            limit = stopped_by(run.trainer)
            remedy = f"set another {limit}" if limit else "raise trainer.max_epochs or trainer.max_steps"
            rank_zero_info(
                f"this run is finished, with {run.done_steps} steps; its results are in {run.folder}; "
                f"to train on, {remedy}"
            )
        elif run.trainer.is_global_zero:
            numbers = summarize(run.trainer, import_seconds=import_seconds, run_seconds=time.time() - began)
            begin.count()
            write_record(_record_of(config, run, numbers), run.folder / RECORD)
            _upload(run)
            for logger in run_loggers(run.trainer):
                logger.summarize(numbers)
            print_summary(numbers, run.folder, run.trainer, done_steps=run.done_steps)
        exit_code = 0
    except Preempted:
        exit_code = STATUS
        if run.trainer.is_global_zero:  # the other ranks exit with 0: launchers would report their status as a failure
            is_ours = run.goes_on or run.trainer.global_step > run.done_steps
            newest = next(reversed(step_files(run.folder)), None) if is_ours else None
            raise record(run.folder, global_step=max(run.trainer.global_step, run.done_steps), newest=newest) from None
    finally:
        stop.over = True
        for logger in run_loggers(run.trainer):
            logger.finish(exit_code=exit_code, preempted=exit_code == STATUS)
        if exit_code and not begin.done:
            run.undo.close()


def _record_of(config: DictConfig, run: Run, numbers: dict[str, float]) -> dict[str, Any]:
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


def _upload(run: Run) -> None:
    """Upload the record of the run and its last rows to the mirror, if there is one."""
    for callback in run.trainer.checkpoint_callbacks:
        if not isinstance(callback, KeepsCheckpoints) or (url := callback.mirror) is None:
            continue
        try:
            mirror.call(
                "put", url, files=[str(file) for name in (METRICS, RECORD) if (file := run.folder / name).exists()]
            )
        except ImagenetOptError as error:
            log.warning(f"{RECORD} is not in {mirror.KEY}={url}: {error}; {run.folder} has it")


class _Begin(Callback):
    """Makes the run folder that of this run, after everything else has accepted the run, and counts its seconds."""

    def __init__(self, config: DictConfig, run: Run, began: float) -> None:
        self.config, self.run, self.began = config, run, began
        self.done = False
        self.starts = list(run.model.record["starts"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        clear(self.run.folder)
        if is_first():
            record_configuration(self.config, self.run.folder, self.run.model.record["recipes"], trainer.global_step)
        self.done = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.count()

    def count(self) -> None:
        """Set the record's `starts`: the first step and the seconds of each start of the run, up to now."""
        self.run.model.record["starts"] = [*self.starts, [self.run.done_steps, time.time() - self.began]]


def _train(run: Run) -> None:
    """Train. Raises Preempted if a stop signal ended workers. Other errors explain why a worker or a rank died."""
    try:
        run.trainer.fit(run.model, datamodule=run.data, ckpt_path=run.checkpoint, weights_only=True)
    except MisconfigurationException as error:
        raise ConfigError(f"trainer: {' '.join(str(error).split())}") from error
    except (RuntimeError, WorkerDied) as error:
        death = error if isinstance(error, WorkerDied) else explain_worker_death(error) or explain(error)
        if stop.why and isinstance(death, WorkerDied):  # the scheduler sent the signal to all processes
            raise Preempted(stop.reason) from error
        if death is None or death is error:
            raise
        raise death from error
