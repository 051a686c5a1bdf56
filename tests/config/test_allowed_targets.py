"""A `_target_` of an experiment file or of a checkpoint belongs to the allowed packages. See docs/trust.md."""

import re
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from imagenet_opt.cli.evaluate import main as evaluate
from imagenet_opt.config.build import make
from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.config.trust import check_targets
from imagenet_opt.errors import ConfigError
from imagenet_opt.model.network import build_network
from imagenet_opt.training.build_run import build_run
from tests import conftest


def recipe(folder: Path, text: str) -> tuple[str, str]:
    """The overrides that choose an experiment file with this text."""
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment/mine.yaml").write_text(f"# @package _global_\n{text}\n")
    return f"hydra.searchpath=[file://{folder}]", "experiment=mine"


def test_every_target_of_the_shipped_configuration_is_allowed() -> None:
    files = [file for file in config_folder().rglob("*.yaml") if not file.is_relative_to(config_folder() / "hydra")]
    targets = [target for file in files for target in re.findall(r"_target_: (\S+)", file.read_text())]
    assert len(targets) > 12
    for target in targets:
        check_targets(OmegaConf.create({"_target_": target}), allowed=[])


@pytest.mark.parametrize(
    "target", ["os.system", "imagenet_opt.callbacksish.X", "imagenet_opt.callbacks.mixing.os.system"]
)
def test_other_targets_are_refused_at_any_depth(target: str) -> None:
    inner = [{"c": 1}, [{"_target_": target, "_partial_": True}]]
    hidden = {"a": {"_target_": "imagenet_opt.callbacks.mixing.Mixing", "b": inner}}
    with pytest.raises(ConfigError) as caught:
        check_targets(OmegaConf.create(hidden), "callbacks", allowed=["my_package"])
    assert f"callbacks.a.b[1][0]._target_={target}" in str(caught.value)


def test_an_experiment_file_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    words = recipe(tmp_path, "part: os\ncallbacks: {x: {_target_: '${part}.system'}}")
    with pytest.raises(ConfigError, match=r"callbacks\.x\._target_"):
        composed(words)
    with pytest.raises(ConfigError, match=r"callbacks\.x\._target_"):
        build_run(conftest.composed(*words, f"run_folder={tmp_path}/run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("allowed", ["mine", "mine.Mine"])
def test_code_that_allow_targets_names_is_built(allowed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("from lightning.pytorch import Callback\nclass Mine(Callback): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "callbacks: {mine: {_target_: mine.Mine}}"
    with pytest.raises(ConfigError, match=r"callbacks\.mine\._target_"):
        composed(recipe(tmp_path, text))
    config = composed(recipe(tmp_path, f"allow_targets: [{allowed}]\n{text}"))
    assert type(make(config.callbacks.mine, "callbacks.mine")).__module__ == "mine"


def test_a_checkpoint_brings_no_target(tmp_path: Path, images_root: Path) -> None:
    recipe, evil = {"name": "resnet10t", "num_classes": 3}, {"mean": "{_target_: os.system, command: true}"}
    weights = build_network(**recipe).state_dict()
    torch.save({"network": weights, "network_config": recipe | evil}, tmp_path / "evil.ckpt")
    with pytest.raises(ConfigError, match=r"data\.mean\._target_=os\.system"):
        evaluate([f"ckpt={tmp_path}/evil.ckpt", f"data.root={images_root}"])
