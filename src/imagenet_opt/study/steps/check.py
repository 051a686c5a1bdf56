"""Whether each row of a study of steps is a configuration that train.py would take, before the first is measured."""

from dataclasses import fields
from typing import Any

import torch
from lightning.pytorch import Trainer
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.config.build import check_types, make, precision_of
from imagenet_opt.config.compose import composed
from imagenet_opt.data.options import Loading
from imagenet_opt.errors import ConfigError, ImagenetOptError
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.network import RECIPE, build_network
from imagenet_opt.model.optimizer import build_optimizer
from imagenet_opt.study.steps.plan import Plan


def check_rows(plan: Plan) -> None:
    """Their keys and values; no data is read and no network built. Raises ConfigError with the row's name."""
    for row in plan.rows:
        if row.step and not row.step.overrides and row.step.batch_factor is None:
            raise ConfigError(f"{row.name}: the step changes nothing; give it overrides or batch_factor")
        try:
            _check(composed(plan.overrides_of(row)))
        except ImagenetOptError as error:
            raise ConfigError(f"{row.name}: {error}") from error


def _check(config: DictConfig) -> None:
    """What steps are made of, as config/build.py checks it. Raises ConfigError."""
    model, data = _plain(config.model), _plain(config.data)
    network = {name: model.pop(name) for name in RECIPE}
    network["num_classes"] = network["num_classes"] or 1  # null: as many as the data has
    check_types(build_network, network, "model.")
    check_types(Classifier, model, "model.")
    check_types(build_optimizer, _plain(config.optimizer), "optimizer.")
    trainer = _plain(config.trainer)
    trainer["precision"] = precision_of(trainer["precision"], torch.device("cpu"))
    check_types(
        Trainer, {key: value for key, value in trainer.items() if key not in ("devices", "num_nodes")}, "trainer."
    )
    if "acceleration" in config.callbacks:
        make(config.callbacks.acceleration, "callbacks.acceleration")
    names = [field.name for field in fields(Loading)]
    if set(names) <= data.keys():
        Loading(**{name: data[name] for name in names})


def _plain(node: DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(node, resolve=True)  # type: ignore[return-value]
