"""Builds a run from a configuration: data, model, trainer and the checkpoint to resume from."""

import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from omegaconf import DictConfig

from imagenet_opt.config.build import build_model, build_trainer, image_sizes
from imagenet_opt.config.compose import SWITCHES, has_other_overrides, task_overrides
from imagenet_opt.config.targets import check_types
from imagenet_opt.config.trust import check_targets
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.errors import CheckpointMismatch, ConfigError, did_you_mean
from imagenet_opt.measure.telemetry import timeline
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.initial_weights import load_initial_weights
from imagenet_opt.model.loss import mean_names
from imagenet_opt.model.saved_network import VALIDATED_WITH
from imagenet_opt.probe.memory_need import log_need
from imagenet_opt.run.checkpoint import files as checkpoints
from imagenet_opt.run.checkpoint import mirror, names, restore
from imagenet_opt.run.hooks import KeepsCheckpoints
from imagenet_opt.run.loggers.run_logger import FILES
from imagenet_opt.run.numbers import METRICS
from imagenet_opt.run.record import RECORD, SUMMARY
from imagenet_opt.run.stop.ranks import RankCheck
from imagenet_opt.training.preempted import SWEEP_JOB
from imagenet_opt.training.recipe import recipe_of, recipes_after
from imagenet_opt.training.run_data import AUTO, build_data

log = logging.getLogger(__name__)

_OF_A_RUN = (names.FOLDER, names.LAST, names.BEST, timeline.FOLDER, METRICS, RECORD, SUMMARY, *FILES)
"""What a later start of a run reads, and would take for its own."""


@dataclass(frozen=True)
class Run:
    """The arguments of a fit. checkpoint: the file to resume from at step `done_steps`; None for a new run. goes_on:
    whether this start continues the run of its folder. undo: gives the folder back to the run before, if it is closed
    because this run does not begin to train."""

    trainer: Trainer
    model: Classifier
    data: ImageData
    folder: Path
    checkpoint: Path | None
    done_steps: int
    goes_on: bool = True
    undo: ExitStack = field(default_factory=ExitStack)


def build_run(config: DictConfig) -> Run:
    """Build a run without starting workers or training. Raises ImagenetOptError for mistakes that the user can fix."""
    check_targets(config, allowed=config.allow_targets)
    folder = Path(config.run_folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    check_types(LoaderOptions, {"seed": config.seed}, "")
    seed_everything(config.seed, verbose=False)
    url = _mirror(config, folder)
    begun = {"resume_from": config.resume_from, "overrides": task_overrides()}
    resume_from = _begin_or_go_on(begun, folder, url)
    found = restore.find(resume_from, folder, url=url)
    with ExitStack() as undo:
        if resume_from is None and restore.is_first():
            _set_old_run_aside(folder, undo)
        with found.without_downloads_if_refused():
            run = _build(config, folder, found.path)
        run = replace(run, goes_on=resume_from == "auto", undo=undo.pop_all())
    if not run.goes_on or not run.model.record.get("begun"):
        run.model.record["begun"] = begun
    for callback in run.trainer.checkpoint_callbacks:
        if isinstance(callback, KeepsCheckpoints):
            callback.replaced, callback.scored_with = found.replaced, _scored_with(config, run)
    return run


def _begin_or_go_on(begun: dict[str, Any], folder: Path, url: str | None) -> str | None:
    """resume_from of this start: "auto" also where the same command has begun the run of the folder before, as when a
    scheduler starts a job again."""
    resume_from: str | None = begun["resume_from"]
    if SWEEP_JOB in os.environ and has_other_overrides(folder):
        log.warning(f"{folder} holds a run with other overrides: this job starts a new run")
        return None
    if resume_from != "auto" and restore.has_begun(begun, folder, url=url):
        another = "" if url is None else f", and set another {mirror.KEY}"
        rank_zero_info(
            f"resume_from={checkpoints.word(resume_from)}: the same command began the run in {folder}, which resumes; "
            f"to begin it again, rename or remove this folder{another}"
        )
        return "auto"
    return resume_from


def _scored_with(config: DictConfig, run: Run) -> dict[str, Any]:
    """What the scores of validations depend on, beside the weights."""
    facts = {key: run.model.network_config.get(key) for key in (*VALIDATED_WITH, "image_size", "val_flip")}
    limit, is_averaged = str(config.trainer.get("limit_val_batches")), "ema" in config.callbacks
    return facts | {"images": len(run.data.val), "limit_val_batches": limit, "ema": is_averaged}


def _build(config: DictConfig, folder: Path, checkpoint: Path | None) -> Run:
    """Build a run that begins with `checkpoint`; None for a new run."""
    is_auto = config.data.batch_size == AUTO
    data = build_data(config, checkpoint)
    trainer = build_trainer(config, RankCheck(checkpoint))
    if optional := [name for name in SWITCHES if name in config.callbacks]:
        rank_zero_info(f"optional callbacks: {', '.join(optional)}")
    model = build_model(config, global_batch=data.loading.batch_size * trainer.world_size)
    _warn_of_small_validation(config)
    _check_monitors(config)
    model.network_config["classes"] = list(data.train.classes)
    if checkpoint is None:
        _load_first_weights(config, model)
    if not is_auto:  # with auto, trials have shown that the batch fits
        log_need(config)
    recipe = recipe_of(config)
    if checkpoint is None:
        rank_zero_info(f"new run in {folder}")
        model.record |= {"recipes": {0: recipe}, "starts": []}
        return Run(trainer, model, data, folder, None, 0)
    saved = checkpoints.read(checkpoint)
    source = f"the weights of {checkpoint} (resume_from)"
    checkpoints.check_settings(saved, model.network_config, source, "model.name")
    _check_classes(saved, data.train.classes)
    checkpoints.check_network(saved, model.net, checkpoint)
    _check_saved(saved, config)
    if (order := saved.get(ImageData.__name__)) is not None:
        data.check_order(order, trainer)
    done_steps = saved["global_step"]
    recipes, lines = recipes_after(saved, recipe, is_confirmed=config.change_recipe is True)
    model.record |= {"recipes": recipes, "begun": saved.get("begun"), "starts": saved.get("starts", [])}
    for line in (f"resuming from {checkpoint} at step {done_steps}", *lines):
        rank_zero_info(line)
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


@rank_zero_only
def _warn_of_small_validation(config: DictConfig) -> None:
    """Warn of validation images that are smaller than the last training images, on which accuracy is low."""
    validated, trained = config.data.val_image_size or config.data.image_size, image_sizes(config)[-1]
    if validated < trained:
        log.warning(
            f"validation images have {validated} pixels and the last training images {trained}, so accuracy will be "
            f"low: set data.val_image_size={trained}, or a smaller callbacks.resolution_schedule.end"
        )


def _check_monitors(config: DictConfig) -> None:
    """Raise ConfigError for a metric that no validation logs. Packages of the user may log others."""
    known = [f"val/{name}" for name in mean_names(config.model.num_classes)]
    for name in ("checkpoint", "early_stop") if not config.allow_targets else ():
        monitor = config.callbacks.get(name, {}).get("monitor", known[0])
        if monitor not in known and not monitor.startswith("train/"):
            hint = did_you_mean(monitor, known, "")
            raise ConfigError(f"callbacks.{name}.monitor={monitor} is not logged; {hint} known: {', '.join(known)}")


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
        rank_zero_info("starting from random weights (model.pretrained=false, model.init_from=null)")


def _check_classes(saved: dict[str, Any], classes: Sequence[str]) -> None:
    """Raise CheckpointMismatch for classes of other names or in another order."""
    before = saved.get("network_config", {}).get("classes", classes)
    for number, (old, new) in enumerate(zip(before, classes, strict=False)):
        if old != new:
            raise CheckpointMismatch(
                f"class {number} was {old}, is now {new}: the checkpoint was trained with other class names or another "
                "order of them (data.root); use the same data, or start a new run with resume_from=null"
            )


def _check_saved(saved: dict[str, Any], config: DictConfig) -> None:
    """Raise ConfigError if the run has trained longer than configured, CheckpointMismatch if a training would resume a
    rehearsal, which trains no weights. The rehearsal callback refuses to resume a training as a rehearsal."""
    epochs = saved["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    for key, done in (("max_steps", saved["global_step"]), ("max_epochs", epochs)):
        if (limit := config.trainer[key]) not in (None, -1) and done > limit:
            raise ConfigError(
                f"the run has trained {done} {key[4:]} already, more than trainer.{key}={limit}; raise trainer.{key}"
            )
    if "Rehearsal" in saved["callbacks"] and "rehearsal" not in config.callbacks:
        raise CheckpointMismatch(
            "the run folder holds a rehearsal, whose weights are untrained; choose another hydra.run.dir, or start a "
            "new run with resume_from=null"
        )


def _set_old_run_aside(folder: Path, undo: ExitStack) -> None:
    """Move the files of another run in `folder` to `folder`/replaced_N; `undo` moves them back."""
    names = [name for name in _OF_A_RUN if (folder / name).exists()]
    if not names:
        return
    aside = next(path for number in count(1) if not (path := folder / f"replaced_{number}").exists())
    aside.mkdir()
    for name in names:
        (folder / name).rename(aside / name)
    log.info(f"a new run: the files of the run before are now in {aside}")

    def put_back() -> None:
        for name in names:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            (aside / name).replace(folder / name)
        aside.rmdir()

    undo.callback(put_back)
