"""Learning rates that shrink towards the stem: timm's groups, and their rates throughout a run."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from timm.optim import create_optimizer_v2
from torch import nn
from torch.optim import Optimizer

from imagenet_opt.errors import CheckpointMismatch, ConfigError
from imagenet_opt.model.schedule import cosine
from tests.callbacks.conftest import Memory
from tests.model import test_optimizer
from tests.model.conftest import OPTIMIZER, batches, fit

DECAYED = partial(OPTIMIZER, layer_decay=0.5)
"""Its peak rate is 0.125."""


def resnet() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=3)


build = partial(test_optimizer.build, weight_decay=0.25, layer_decay=0.7)
"""Its peak rate is 0.75."""


def options_of(optimizer: Optimizer, net: nn.Module, rate: str = "lr") -> dict[str, tuple[float, float]]:
    """Name of each parameter -> learning rate, weight decay."""
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    groups = optimizer.param_groups
    return {names[id(p)]: (group[rate], group["weight_decay"]) for group in groups for p in group["params"]}


@pytest.mark.parametrize("model", ["test_vit", "test_resnet", "test_convnext"])
def test_rates_and_decay_are_timms(model: str) -> None:
    net = timm.create_model(model, num_classes=3)
    theirs = options_of(create_optimizer_v2(net, "adamw", weight_decay=0.25, layer_decay=0.7), net, "lr_scale")
    ours = options_of(build(net, "adamw"), net)
    assert ours == {name: (pytest.approx(0.75 * scale), decay) for name, (scale, decay) in theirs.items()}


class Rates(Callback):
    """Rates of all groups, in each step."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.seen.append([group["lr"] for group in trainer.optimizers[0].param_groups])


def test_rates_keep_their_ratio_and_that_of_the_head_is_logged() -> None:
    rates, logger = Rates(), Memory()
    fit(resnet(), batches(4), None, rates, optimizer=DECAYED, logger=logger)
    factors = [cosine(step, num_steps=8, steps_per_epoch=4, warmup_epochs=0.5) for step in range(8)]
    layers_after = [math.log2(rates.seen[0][0] / rate) for rate in rates.seen[0]]
    assert set(layers_after) == set(range(6))
    for seen, factor in zip(rates.seen, factors, strict=True):
        assert seen == pytest.approx([0.125 * factor * 0.5**layers for layers in layers_after])
    assert [row["lr"] for _, row in logger.rows if "train/loss" in row] == pytest.approx(
        [0.125 * factor for factor in factors]
    )


def test_a_run_resumes_with_the_rates_of_its_layers(tmp_path: Path) -> None:
    class Save(Callback):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            if trainer.current_epoch == 0:
                trainer.save_checkpoint(tmp_path / "half.ckpt")

    before, after = Rates(), Rates()
    _, whole = fit(resnet(), batches(4), None, before, Save(), optimizer=DECAYED)
    _, half = fit(resnet(), batches(4), None, after, optimizer=DECAYED, ckpt_path=tmp_path / "half.ckpt")
    assert after.seen == before.seen[4:]
    assert all(torch.equal(a, b) for a, b in zip(whole.net.parameters(), half.net.parameters(), strict=True))
    with pytest.raises(CheckpointMismatch, match=r"parameter groups of \[.*groups\) .*; set optimizer\.layer_decay,"):
        fit(resnet(), batches(4), optimizer=OPTIMIZER, ckpt_path=tmp_path / "half.ckpt")


def test_a_frozen_stem_changes_no_rate_of_the_layers_after_it() -> None:
    _, module = fit(resnet(), batches(1), freeze="layer1", optimizer=DECAYED, schedule=lambda step, **_: 1.0)
    trained = options_of(module.trainer.optimizers[0], module.net)
    assert not any(name.startswith(("conv1", "bn1", "layer1")) for name in trained)
    everything = options_of(DECAYED(net := resnet(), device=torch.device("cpu")), net)
    assert trained == {name: everything[name] for name in trained} != {}


@pytest.mark.parametrize("value", [0, -0.5, 1.5, float("nan")])
def test_a_factor_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.layer_decay=\S+ must be above 0 and at most 1"):
        build(resnet(), layer_decay=value)
