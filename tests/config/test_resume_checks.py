"""What a resumed run may change, and what is refused."""

import logging
import math
from pathlib import Path

import pytest
import torch

from imagenet_opt import errors
from imagenet_opt.run.loggers.metrics_csv import MetricsCsv, read_rows
from imagenet_opt.training.build_run import Run, build_run
from tests.config.configs import tiny


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
def test_rows_are_dropped_by_the_resume_that_logs_them_again_not_by_one_that_is_refused(
    images_root: Path, tmp_path: Path
) -> None:
    def fit(*overrides: str) -> None:
        run = build_run(tiny(tmp_path, images_root, *overrides))
        run.trainer.fit(run.model, datamodule=run.data, ckpt_path=run.checkpoint, weights_only=True)

    fit("trainer.max_steps=2")
    file = tmp_path / "run/metrics.csv"
    MetricsCsv(folder=str(file.parent)).log_metrics({"train/loss": 8.0}, 7)  # trained after the last checkpoint
    before = file.read_bytes()
    with pytest.raises(errors.CheckpointMismatch):
        fit("trainer.max_steps=3", "seed=1")
    assert file.read_bytes() == before
    fit("trainer.max_steps=3")
    assert max(step for step, _ in read_rows(file)) == 2


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
def test_another_optimizer_or_fewer_epochs_than_are_done_are_refused(images_root: Path, tmp_path: Path) -> None:
    first = build_run(tiny(tmp_path, images_root, "trainer.max_epochs=2", "trainer.log_every_n_steps=2"))
    first.trainer.fit(first.model, datamodule=first.data)
    for name in ("adamw", "lamb"):
        other = build_run(
            tiny(tmp_path, images_root, "trainer.max_epochs=3", "trainer.log_every_n_steps=2", f"optimizer={name}")
        )
        words = r"another optimizer, which has .*momentum.*resume_from=null"
        with pytest.raises(errors.CheckpointMismatch, match=words):
            other.trainer.fit(other.model, datamodule=other.data, ckpt_path=other.checkpoint, weights_only=True)
    with pytest.raises(errors.ConfigError, match=r"has trained 2 epochs already, more than trainer\.max_epochs=1;"):
        build_run(tiny(tmp_path, images_root, "trainer.max_epochs=1"))
    assert build_run(tiny(tmp_path, images_root, "trainer.max_epochs=2")).done_steps == 12


def test_a_checkpoint_of_another_network_is_refused_with_its_keys(images_root: Path, tmp_path: Path) -> None:
    run = build_run(tiny(tmp_path, images_root, "trainer.max_steps=1", "trainer.log_every_n_steps=1"))
    run.trainer.fit(run.model, datamodule=run.data)
    with pytest.raises(errors.CheckpointMismatch, match="only in the file") as caught:
        build_run(tiny(tmp_path, images_root, "model.name=test_vit", "data.image_size=160"))
    assert "test_resnet" in str(caught.value)
    assert "resume_from=null" in str(caught.value)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
def test_a_run_goes_on_with_new_rates_but_not_with_other_batches(
    images_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = build_run(tiny(tmp_path, images_root, "trainer.max_steps=2", "optimizer.lr=0.5"))
    first.trainer.fit(first.model, datamodule=first.data)

    def goes_on(*overrides: str) -> tuple[Run, torch.optim.Optimizer]:
        run = build_run(tiny(tmp_path, images_root, "trainer.max_steps=5", "schedule.warmup_epochs=0", *overrides))
        run.trainer.fit(run.model, datamodule=run.data, ckpt_path=run.checkpoint, weights_only=True)
        return run, run.trainer.optimizers[0]

    caplog.clear()
    for override, words in (
        ("data.batch_size=12", ("a global batch was 6 images, is now 12", "data.batch_size")),
        ("seed=1", ("seed was 0, is now 1", "resume_from=null")),
        ("data.samples_per_epoch=24", ("data.samples_per_epoch was 0, is now 24",)),
    ):
        with caplog.at_level(logging.INFO), pytest.raises(errors.CheckpointMismatch) as caught:
            goes_on(override)
        assert all(word in str(caught.value) for word in words)
        assert "resuming" not in caplog.text
    with caplog.at_level(logging.INFO):
        run, optimizer = goes_on("optimizer.lr=0.25", "optimizer.weight_decay=0.125")
    assert "optimizer, from step 2 on" in caplog.text
    half_cosine = (1 + math.cos(math.pi * 5 / 5)) / 2
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25 * 6 / 256 * half_cosine)
    assert optimizer.param_groups[0]["initial_lr"] == 0.25 * 6 / 256
    assert optimizer.param_groups[0]["weight_decay"] == 0.125
    assert run.done_steps == 2
