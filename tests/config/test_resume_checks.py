"""Changes that a resumed run accepts, and changes that it refuses."""

import logging
import math
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from imagenet_opt import errors
from imagenet_opt.run.checkpoint import files
from imagenet_opt.run.loggers.csv_logger import MetricsCsv
from imagenet_opt.run.numbers import read_rows
from imagenet_opt.training.build_run import Run, build_run
from tests.config.configs import fitted, tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")]


@pytest.fixture
def fit(images_root: Path, tmp_path: Path) -> Callable[..., Run]:
    """Starts or resumes the run of the test with these overrides."""

    return lambda *overrides: fitted(tiny(tmp_path, images_root, *overrides))


def test_a_refused_resume_keeps_rows_that_a_resume_drops(fit: Callable[..., Run], tmp_path: Path) -> None:
    fit("trainer.max_steps=2")
    file = tmp_path / "run/metrics.csv"
    MetricsCsv(folder=str(file.parent)).log_metrics({"train/loss": 8.0}, 7)  # trained after the last checkpoint
    before = file.read_bytes()
    with pytest.raises(errors.CheckpointMismatch):
        fit("trainer.max_steps=3", "seed=1")
    with pytest.raises(errors.UnknownModel):
        fit("trainer.max_steps=3", "resume_from=null", "model.name=none")
    assert file.read_bytes() == before and (file.parent / "last.ckpt").exists()
    fit("trainer.max_steps=3")
    assert max(step for step, _ in read_rows(file)) == 2


def test_another_optimizer_another_network_and_fewer_epochs_are_refused(
    fit: Callable[..., Run], images_root: Path, tmp_path: Path
) -> None:
    fit("trainer.max_epochs=2", "trainer.log_every_n_steps=2")
    with pytest.raises(errors.CheckpointMismatch, match=r"another optimizer.*momentum.*resume_from=null"):
        fit("trainer.max_epochs=3", "trainer.log_every_n_steps=2", "optimizer=adamw", "change_recipe=true")
    with pytest.raises(errors.CheckpointMismatch, match=r"parameter groups.*set optimizer\.layer_decay"):
        fit("trainer.max_epochs=3", "trainer.log_every_n_steps=2", "optimizer.layer_decay=0.5")
    for same_tensors in ("model.name=test_resnet.r160_in1k", "data.std=[1,1,1]"):
        key = same_tensors.partition("=")[0]
        with pytest.raises(errors.CheckpointMismatch, match=rf"this run has {key}=.*; set {key}="):
            build_run(tiny(tmp_path, images_root, same_tensors))
    renamed = shutil.copytree(images_root, tmp_path / "renamed")
    for split in ("train", "val"):
        (renamed / split / "class0").rename(renamed / split / "last")  # another order, as many images of each class
    with pytest.raises(errors.CheckpointMismatch, match=r"class 0 was class0, is now class1.*data\.root"):
        build_run(tiny(tmp_path, renamed))
    with pytest.raises(errors.ConfigError, match=r"has trained 2 epochs already, more than trainer\.max_epochs=1;"):
        fit("trainer.max_epochs=1")
    assert build_run(tiny(tmp_path, images_root, "trainer.max_epochs=2")).done_steps == 12


def test_a_resumed_run_takes_new_rates_but_no_other_batches(
    fit: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    fit("trainer.max_steps=2", "optimizer.lr=0.5")
    more = ("trainer.max_steps=5", "schedule.warmup_epochs=0")
    caplog.set_level(logging.INFO)
    caplog.clear()
    with pytest.raises(errors.CheckpointMismatch, match=r"steps of an epoch was 6, is now 3.*trainer\.limit_train"):
        fit(*more, "trainer.limit_train_batches=3")
    assert "resuming" not in caplog.text
    run = fit(*more, "optimizer.lr=0.25", "optimizer.weight_decay=0.125")
    assert "from step 2 on: optimizer.lr 0.5 -> 0.25" in caplog.messages
    at_2, at_5 = (0.25 * 6 / 256 * (1 + math.cos(math.pi * step / 5)) / 2 for step in (2, 5))
    assert f"from step 2 on: lr {at_2:.3g} instead of 0, by a schedule of 5 steps" in caplog.messages
    group = run.trainer.optimizers[0].param_groups[0]
    assert group["lr"] == pytest.approx(at_5)
    assert (group["initial_lr"], group["weight_decay"]) == (0.25 * 6 / 256, 0.125)
    assert run.done_steps == 2


@pytest.mark.filterwarnings("ignore:Be aware that when using")
def test_a_resume_without_averaging_trains_on_from_the_trained_weights(
    fit: Callable[..., Run], images_root: Path, tmp_path: Path
) -> None:
    fit("trainer.max_steps=3", "callbacks.ema.decay=0.9")
    run = build_run(tiny(tmp_path, images_root, "trainer.max_steps=4", "change_recipe=true"))
    assert run.checkpoint is not None
    saved, begun = files.read(run.checkpoint), {}
    begin = Callback()
    begin.on_train_start = lambda trainer, module: begun.update(deepcopy(module.state_dict()))  # type: ignore[method-assign]
    run.trainer.callbacks.append(begin)  # type: ignore[attr-defined]
    run.trainer.fit(run.model, datamodule=run.data, ckpt_path=run.checkpoint, weights_only=True)
    torch.testing.assert_close(begun, dict(saved["current_model_state"]), rtol=0, atol=0)
    assert not torch.equal(begun["net.fc.weight"], saved["network"]["fc.weight"])
