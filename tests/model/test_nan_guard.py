"""A loss that is NaN: the run stops and says which samples it was."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from imagenet_opt.errors import NonFiniteLoss
from tests.model.conftest import Images, batches, fit


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(16, 3))


def batches_with(num: int, *, bad: set[int]) -> list[Images]:
    """Batches, with an image of NaN in the batches `bad`."""
    all_batches = batches(num)
    for i in bad:
        all_batches[i].images[2] = torch.nan
    return all_batches


@pytest.mark.parametrize("every", [1, 1000])
def test_the_run_stops_and_names_the_step_and_its_samples(every: int, tmp_path: Path) -> None:
    """Losses are checked at logging steps and at the end of the epoch, up to ten steps after the bad step."""
    with pytest.raises(NonFiniteLoss) as raised:
        fit(network(), batches_with(50, bad={40}), log_every_n_steps=every, folder=tmp_path)
    file = tmp_path / "nonfinite.json"
    report = json.loads(file.read_text())
    assert all(word in str(raised.value) for word in ("step 40", "optimizer.lr", "model.max_grad_norm", str(file)))
    assert report["step"] == 40
    assert [batch["step"] for batch in report["batches"]] == list(range(9, 41))
    assert report["batches"][-1] == {"step": 40, "loss": "nan", "indices": list(range(240, 246))}
    assert float(report["batches"][-2]["loss"]) > 0


class Save(Callback):
    """Saves after each step, as a checkpoint callback may."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step:
            trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")


class Poison(Callback):
    """Makes gradients infinite in one step whose loss is fine."""

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        if trainer.global_step == 2:
            next(pl_module.net.parameters()).grad.fill_(torch.inf)


@pytest.mark.parametrize(("bad", "callbacks"), [({2}, []), (set(), [Poison()])])
def test_no_checkpoint_contains_nonfinite_values(bad: set[int], callbacks: list[Any], tmp_path: Path) -> None:
    train, options = batches_with(6, bad=bad), {"log_every_n_steps": 100, "folder": tmp_path}
    with pytest.raises(NonFiniteLoss):
        fit(network(), train, None, Save(tmp_path), *callbacks, **options)
    assert sorted(file.name for file in tmp_path.glob("*.ckpt")) == ["1.ckpt", "2.ckpt"]
    for file in tmp_path.glob("*.ckpt"):
        weights = torch.load(file, weights_only=True)["network"].values()
        assert all(bool(tensor.isfinite().all()) for tensor in weights)
