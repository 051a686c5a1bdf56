"""Builds a run from a configuration: data, model, trainer and the checkpoint to resume from."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from omegaconf import DictConfig, open_dict

from imagenet_opt.config.allowed_targets import check_targets
from imagenet_opt.config.build import (
    build_model,
    build_trainer,
    check_types,
    device_of,
    make,
    num_classes_of,
    num_processes,
    share_batch,
)
from imagenet_opt.config.overrides import is_key_typed, is_typed
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.data.loader import train_order
from imagenet_opt.errors import CheckpointMismatch, ConfigError, RunFolderError
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.initial_weights import load_initial_weights
from imagenet_opt.probe.memory_need import log_need
from imagenet_opt.probe.throwaway_run import only
from imagenet_opt.run.checkpoint import files as checkpoints
from imagenet_opt.run.checkpoint import mirror, restore
from imagenet_opt.run.rank_check import RankCheck
from imagenet_opt.training.auto_batch import AUTO, resolve_batch_size
from imagenet_opt.training.preempted import SWEEP_JOB

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """The arguments of a fit. checkpoint: the file to resume from at step `done_steps`; None for a new run."""

    trainer: Trainer
    model: Classifier
    data: ImageData
    folder: Path
    checkpoint: Path | None
    done_steps: int


def build_run(config: DictConfig) -> Run:
    """Build a run without starting workers or training. Raises ImagenetOptError for mistakes that the user can fix."""
    check_targets(config, allowed=config.allow_targets)
    folder = _writable(Path(config.run_folder))
    check_types(seed_everything, {"seed": config.seed}, "")
    seed_everything(config.seed, verbose=False)
    # Compiled code is executed, so no recipe chooses its source.
    fetches_code = is_key_typed(mirror.KEY)
    found = restore.find(config.resume_from, folder, url=_mirror(config, folder), fetches_code=fetches_code)
    with found.removed_if_refused():
        return _build(config, folder, found.path)


def _build(config: DictConfig, folder: Path, checkpoint: Path | None) -> Run:
    """Build a run that begins with `checkpoint`; None for a new run."""
    is_auto = config.data.batch_size == AUTO
    data = _make_data(config, checkpoint)
    trainer = build_trainer(config, RankCheck(checkpoint))
    model = build_model(config, global_batch=data.loading.batch_size * trainer.world_size)
    model.network_config["classes"] = list(data.train.classes)
    if checkpoint is None:
        _load_first_weights(config, model)
    if not is_auto:  # with auto, trials have shown that the batch fits
        log_need(config)
    done_steps = 0
    if checkpoint is None:
        rank_zero_info(f"new run in {folder}")
    else:
        saved = checkpoints.read(checkpoint)
        checkpoints.check_network(saved, model.net, checkpoint)
        _check_saved(saved, config, trainer.max_epochs)
        if (order := saved.get(ImageData.__name__)) is not None:
            data.check_order(order, trainer.world_size)
        done_steps = saved["global_step"]
        log.info(f"resuming from {checkpoint} at step {done_steps}")
    return Run(trainer, model, data, folder, checkpoint, done_steps)


def _mirror(config: DictConfig, folder: Path) -> str | None:
    """The URL of the run's mirror. Jobs of a sweep have the same configuration, so each gets its own folder there."""
    options = config.callbacks.get("checkpoint", DictConfig({}))
    if (url := options.get("mirror")) is None:
        return None
    mirror.check_url(url)
    if SWEEP_JOB in os.environ:
        options.mirror = url = f"{url.rstrip('/')}/{folder.parent.name}/{folder.name}"
    return str(url)


def _make_data(config: DictConfig, checkpoint: Path | None) -> ImageData:
    """Build the data. Set model.num_classes, and set data.batch_size to the number of images per process. Raises
    BatchTooLarge before anything else is built."""
    if config.data.get("global_batch_size") is not None:
        share_batch(config, _world_size(config))
    is_auto = config.data.batch_size == AUTO
    with open_dict(config):
        config.data.batch_size = 1 if is_auto else config.data.batch_size
        data: ImageData = make(config.data, "data")
        if not is_auto:  # auto chooses a batch that the images fill
            train_order(len(data.train), data.loading, world_size=num_processes(config, device_of(config))[1])
        config.model.num_classes = num_classes_of(config.model.num_classes, data)
    if is_auto:
        resolve_batch_size(config, data, checkpoint=checkpoint, world_size=_world_size(config))
    return data


def _world_size(config: DictConfig) -> int:
    return int(build_trainer(only(config, callbacks=())).world_size)


def _load_first_weights(config: DictConfig, model: Classifier) -> None:
    """Load the first weights of a new run; see load_initial_weights. Raises ConfigError for frozen random weights."""
    name, sources = config.model.name, {key: config.model[key] for key in ("pretrained", "init_from")}
    message = load_initial_weights(model.net, name, network_config=model.network_config, **sources)
    if message is not None:
        rank_zero_info(message)
    elif config.model.freeze is not None:
        raise ConfigError(
            f"model.freeze={config.model.freeze} keeps weights as they are, and they are random; set "
            "model.init_from=RUN_FOLDER or model.pretrained=true"
        )
    else:
        _say_random()


@rank_zero_only
def _say_random() -> None:
    """Log that the network starts from random weights; as a warning if the user has typed model.pretrained=false, as
    for a fine-tuning without timm's weights."""
    if is_typed("model.pretrained=false"):
        log.warning(
            "model.pretrained=false without model.init_from: the network starts from random weights; to start from "
            "trained weights, set model.init_from=RUN_FOLDER or model.pretrained=true"
        )
    else:
        log.info("starting from random weights (model.pretrained=false, model.init_from=null)")


def _check_saved(saved: dict[str, Any], config: DictConfig, max_epochs: int | None) -> None:
    """Raise ConfigError if the run has trained more than `max_epochs`, CheckpointMismatch if a training would resume a
    rehearsal, which trains no weights. The rehearsal callback refuses to resume a training as a rehearsal."""
    done = saved["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    if max_epochs not in (None, -1) and done > max_epochs:
        raise ConfigError(
            f"the run has trained {done} epochs already, more than trainer.max_epochs={max_epochs}; raise "
            "trainer.max_epochs"
        )
    if "Rehearsal" in saved["callbacks"] and "rehearsal" not in config.callbacks:
        raise CheckpointMismatch(
            "the run folder holds a rehearsal, whose weights are untrained; choose another hydra.run.dir, or start a "
            "new run with resume_from=null"
        )


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("permission denied")
    except OSError as error:
        reason = error.strerror or error
        raise RunFolderError(
            f"cannot write {folder} ({reason}); choose another folder with hydra.run.dir=FOLDER"
        ) from error
    return folder.resolve()
