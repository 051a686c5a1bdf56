"""Classes have the defaults of conf/: an object that Python code builds equals an object that `train.py` builds."""

import inspect
from dataclasses import asdict
from inspect import get_annotations
from typing import Any

import pytest
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from imagenet_opt.config.compose import SWITCHES
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.data import datamodule
from imagenet_opt.data.options import LoaderOptions
from imagenet_opt.model.classifier import Classifier
from imagenet_opt.model.initial_weights import load_initial_weights
from imagenet_opt.model.network import build_network
from imagenet_opt.model.optimizer import build_optimizer

OF_A_RUN = ("${run_folder}", "${model.num_classes}")
"""Values that only a run has."""
LOADING = {datamodule.folder_data: LoaderOptions(), datamodule.demo_data: datamodule.DEMO_OPTIONS}


def load(name: str) -> Any:
    return OmegaConf.load(config_folder() / f"{name}.yaml")


def nodes() -> list[Any]:
    """Each mapping with a `_target_` of this project in the groups of objects."""
    params = []
    for group in ("data", "schedule", "logger", "callbacks"):
        for file in sorted((config_folder() / group).glob("*.yaml")):
            content = load(f"{group}/{file.stem}")
            if group == "data":
                content = OmegaConf.merge(load("loading"), content)
            for node in [content] if "_target_" in content else content.values():
                if node._target_.startswith(("callbacks.", "imagenet_opt.")):
                    params.append(pytest.param(node, id=f"{group}/{file.stem}"))
    return params


def values_of(node: DictConfig) -> dict[str, Any]:
    """Keys with a default; values that refer to train.yaml are resolved."""
    raw = OmegaConf.to_container(node)
    named = {key: value for key, value in raw.items() if key[0] != "_" and key != "defaults" and value not in OF_A_RUN}
    return OmegaConf.to_container(OmegaConf.merge(load("train"), {"node": named}).node, resolve=True)


def defaults_of(*targets: Any) -> dict[str, Any]:
    parameters = [parameter for target in targets for parameter in inspect.signature(target).parameters.values()]
    known = {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}
    for target in targets:
        known |= asdict(LOADING[target]) if target in LOADING else {}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}


@pytest.mark.parametrize("node", nodes())
def test_a_class_has_the_defaults_of_its_yaml(node: DictConfig) -> None:
    target = get_object(node._target_)
    if getattr(target.__init__, "__module__", "").startswith("lightning"):
        pytest.skip("the arguments are Lightning's")
    values, known = values_of(node) | SWITCHES.get(node._target_.split(".")[-2], {}), defaults_of(target)
    hints = get_annotations(target.__init__ if isinstance(target, type) else target)
    assert [key for key, value in values.items() if type(value) is int and "float" in str(hints.get(key))] == []
    assert values == {name: known.get(name, "no default") for name in values}


def test_every_loader_option_has_a_key() -> None:
    assert load("loading").keys() - {"cache_dir"} == asdict(LoaderOptions()).keys()


@pytest.mark.parametrize(
    ("file", "targets", "required"),
    [
        ("model/resnet50", (build_network, load_initial_weights, Classifier), {"name", "num_classes"}),
        ("optimizer/sgd", (build_optimizer,), {"name", "lr", "momentum", "nesterov", "weight_decay"}),
    ],
)
def test_network_and_optimizer_have_the_defaults_of_their_yaml(file: str, targets: tuple, required: set[str]) -> None:
    values, known = OmegaConf.to_container(load(file)), defaults_of(*targets)
    assert {name: known.get(name, "no default") for name in values} == values | dict.fromkeys(required, "no default")
