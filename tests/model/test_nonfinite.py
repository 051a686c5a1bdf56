"""A loss that is NaN: the run stops and says which samples it was, or the step leaves no trace."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn

from imagenet_opt.errors import ConfigError, NonFiniteLoss
from tests.callbacks.conftest import Memory
from tests.model.conftest import Images, batches, fit

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint"),
]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(16, 3))


def given(num: int, *, bad: set[int]) -> list[Images]:
    """Batches whose images are NaN in the batches `bad`."""
    all_batches = batches(num)
    for i in bad:
        all_batches[i].images[2] = torch.nan
    return all_batches


class Keep(Callback):
    """Everything that a step may change, after each step."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        momenta = {str(i): state["momentum_buffer"] for i, state in enumerate(trainer.optimizers[0].state.values())}
        state = pl_module.net.state_dict() | momenta
        self.states.append({name: tensor.clone() for name, tensor in state.items()})


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("every", [1, 50, 1000])
def test_the_run_stops_and_names_the_step_and_its_samples(every: int, tmp_path: Path) -> None:
    """However long ago the step was when someone looked: at a logging step, or at the end of the epoch."""
    with pytest.raises(NonFiniteLoss) as raised:
        fit(network(), given(50, bad={40}), log_every_n_steps=every, folder=tmp_path)
    file = tmp_path / "nonfinite.json"
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("the loss is nan at step 40; lower optimizer.lr, or set model.max_grad_norm=1")
    assert str(raised.value).endswith(f"in {file}")
    found = json.loads(file.read_text())
    assert found["step"] == 40
    assert [batch["step"] for batch in found["batches"]] == list(range(9, 41))
    assert found["batches"][-1]["loss"] == "nan"
    assert float(found["batches"][-2]["loss"]) > 0
    assert found["batches"][-1]["indices"] == list(range(240, 246))


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
def test_no_checkpoint_is_written_of_what_is_not_finite(bad: set[int], callbacks: list[Any], tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss):
        fit(network(), given(6, bad=bad), None, Save(tmp_path), *callbacks, log_every_n_steps=100, folder=tmp_path)
    assert sorted(file.name for file in tmp_path.glob("*.ckpt")) == ["1.ckpt", "2.ckpt"]
    for file in tmp_path.glob("*.ckpt"):
        weights = torch.load(file, weights_only=True)["network"].values()
        assert all(bool(tensor.isfinite().all()) for tensor in weights)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_skipped_step_leaves_everything_as_it_was_but_the_schedule(scaled: bool, tmp_path: Path) -> None:
    keep, logger = Keep(), Memory()
    plugins = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))] if scaled else None
    trainer, _ = fit(
        network(),
        given(6, bad={3}),
        None,
        keep,
        folder=tmp_path,
        logger=logger,
        plugins=plugins,
        on_nonfinite="skip",
        max_grad_norm=1.0,
    )
    changed = [not same(a, b) for a, b in zip(keep.states, keep.states[1:], strict=False)]
    assert changed == [True, True, False, True, True, True, True, True, False, True, True]
    assert trainer.global_step == trainer.lr_scheduler_configs[0].scheduler.last_epoch == 12
    rows = [row for _, row in logger.rows if "train/skipped_steps" in row]
    assert [row["train/skipped_steps"] for row in rows] == [0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2]
    assert [math.isfinite(row["train/loss"]) for row in rows] == [i not in (3, 9) for i in range(12)]
    assert json.loads((tmp_path / "nonfinite.json").read_text())["step"] == 9


def test_too_many_skips_in_a_row_stop_the_run_also_across_a_resume(tmp_path: Path) -> None:
    options = {"on_nonfinite": "skip", "max_skipped_steps": 3, "folder": tmp_path}
    _, module = fit(network(), given(8, bad={1, 2, 3, 5, 6, 7}), **options)
    assert module.nonfinite.num_skipped == 12
    with pytest.raises(NonFiniteLoss, match=r"4 steps in a row, up to step 4 \(model.max_skipped_steps=3\); lower"):
        fit(network(), given(8, bad={1, 2, 3, 4}), None, Save(tmp_path), **options)
    with pytest.raises(NonFiniteLoss, match="4 steps in a row, up to step 4"):
        fit(network(), given(8, bad={0, 1, 2, 3}), ckpt_path=tmp_path / "4.ckpt", **options)


def test_weights_averaged_over_time_stay_finite(tmp_path: Path) -> None:
    average = EMAWeightAveraging(decay=0.5)
    fit(network(), given(4, bad={0, 2}), None, average, folder=tmp_path, on_nonfinite="skip")
    assert all(bool(p.isfinite().all()) for p in average._average_model.parameters())


@pytest.mark.parametrize(
    ("options", "said"),
    [({"on_nonfinite": "ignore"}, "model.on_nonfinite='ignore'"), ({"max_skipped_steps": 0}, "max_skipped_steps=0")],
)
def test_wrong_options_are_told(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fit(network(), batches(1), **options)
