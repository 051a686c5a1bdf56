"""Fits without the accelerator; what the device did is read off its timeline, never off a clock."""

from functools import partial

import pytest
import torch
from torch import nn

from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.callbacks.rehearsal import Rehearsal
from imagenet_opt.errors import CheckpointMismatch, ConfigError
from imagenet_opt.measure.rehearsal import DeviceTimeline
from imagenet_opt.probe.fit_timer import FitTimer
from tests.callbacks.conftest import Clock, Plain


def rehearsal(**options) -> Rehearsal:
    usual = {"images_per_second": 1e4, "launch_seconds": 0.0, "copy_gb_per_second": 10.0}
    return Rehearsal(**({"name": "x"} | usual | options))


class Validating(Plain):
    def validation_step(self, batch, batch_idx) -> None:
        self.log("val/loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))


class Reading(Plain):
    """Waits for the device in each step."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.last = loss.item()
        return loss


def test_the_network_computes_nothing_and_is_itself_again_afterwards(project) -> None:
    module = Validating()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    callback = rehearsal()
    project.fit(callback, module=module)
    assert "forward" not in vars(module.net)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert project.trainer.callback_metrics["val/loss"] == pytest.approx(torch.log(torch.tensor(3.0)).item())
    assert callback.timeline.num_steps == 20  # of training; validation is left out
    assert module.net(torch.zeros(1, 3, 8, 8)).abs().sum() > 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the simulated device; the host that waits for the device spends its time on it."""
    made = Clock()
    timeline = partial(DeviceTimeline, clock=made.perf_counter, sleep=made.spend)
    monkeypatch.setattr("imagenet_opt.callbacks.rehearsal.DeviceTimeline", timeline)
    return made


def test_each_step_takes_the_time_in_the_profile(project, clock: Clock) -> None:
    callback = rehearsal(images_per_second=100.0)
    project.fit(callback, max_epochs=1)
    assert callback.summary()["rehearsal/busy_seconds"] == pytest.approx(9 * 4 / 100 * (8 / 224) ** 2)
    assert all("rehearsal/accelerator_utilization" in row for _, row in project.logger.rows if "epoch" not in row)


def test_code_that_waits_for_the_device_is_reported_with_its_line(project) -> None:
    """The timer of the doctor counts them in the steps that it measures and that log nothing."""
    callback, timer = rehearsal(), FitTimer(seconds=0.0, limit_seconds=60.0, multiple=1)
    project.fit(callback, timer, module=Reading(), max_epochs=4, log_every_n_steps=5)
    (wait,) = (wait for wait in callback.waits.counts if wait.code == "self.last = loss.item()")
    assert callback.waits.counts[wait] == project.trainer.global_step
    assert 0 < timer.timing.num_ordinary < len(timer.timing.step_seconds)
    assert timer.timing.waits[f"item at {wait.place}"] == timer.timing.num_ordinary


def test_checkpoints_have_their_keys_and_their_size(project, tmp_path) -> None:
    saved = []
    for name, callbacks in (("real", []), ("rehearsed", [rehearsal()])):
        checkpoint = Checkpoint(folder=str(tmp_path / name), every_n_steps=None, every_minutes=None, keep=1)
        project.fit(*callbacks, checkpoint, max_epochs=1, default_root_dir=tmp_path / name)
        saved.append(torch.load(tmp_path / name / "last.ckpt", weights_only=True))
    sizes = [[each["momentum_buffer"].shape for each in one["optimizer_states"][0]["state"].values()] for one in saved]
    assert saved[0]["state_dict"].keys() == saved[1]["state_dict"].keys() and sizes[0] == sizes[1] != []
    with pytest.raises(CheckpointMismatch, match="real hardware"):
        project.fit(rehearsal(), checkpoint, max_epochs=2, ckpt_path=tmp_path / "real/last.ckpt")


def test_a_network_that_is_not_there_is_refused(project) -> None:
    with pytest.raises(ConfigError, match=r"callbacks\.rehearsal\.network='model'"):
        project.fit(rehearsal(network="model"))
