"""Rates and waits of loaders and steps that take known times of an injected clock."""

from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch.utils.data import DataLoader

from imagenet_opt.callbacks.bottleneck import Bottleneck
from imagenet_opt.callbacks.throughput import Throughput
from tests.callbacks.conftest import Clock, Named, Plain, SlowImages, SlowStep, images

RATES = {f"throughput/{name}" for name in ("it_per_second", "images_per_second", "data_wait_fraction")}


class Reading(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step([batch.images, batch.labels], batch_idx)


class SlowValidation(Callback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_validation_batch_start(self, *_) -> None:
        self.clock.spend(0.4)


def test_waits_for_a_slow_loader_and_start_up_are_reported(project, clock: Clock) -> None:
    throughput = Throughput()
    project.fit(throughput, module=SlowStep(clock), data=SlowImages(clock))
    assert throughput.summary() == pytest.approx(
        {
            "throughput/data_wait_fraction": 0.04 / 0.05,
            "throughput/images_per_second": 4 / 0.05,
            "throughput/it_per_second": 1 / 0.05,
            "throughput/measured_batches": 10,
            "throughput/ready_batches": 0,
            "startup/first_batch_seconds": 0.04,
            "startup/first_step_seconds": 0.01,
        }
    )


def test_a_slow_step_is_not_waiting_and_validation_is_left_out(project, clock: Clock) -> None:
    throughput = Throughput()
    project.fit(throughput, SlowValidation(clock), module=SlowStep(clock))
    assert throughput.summary()["throughput/data_wait_fraction"] == 0
    assert throughput.summary()["throughput/it_per_second"] == pytest.approx(100)
    assert project.logger.values("throughput/epoch_seconds") == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(("module", "collate_fn"), [(Plain, None), (Reading, Named.of)])
def test_rows_come_at_logging_steps_and_agree(project, module: type[Plain], collate_fn: Any) -> None:
    project.fit(Throughput(), module=module(), collate_fn=collate_fn)
    rows = [(step, row) for step, row in project.logger.rows if row.keys() & RATES]
    assert [step for step, _ in rows] == [4, 9, 14, 19]
    for _, row in rows:
        assert row.keys() >= RATES
        ratio = row["throughput/images_per_second"] / row["throughput/it_per_second"]
        assert ratio == pytest.approx(4)


@pytest.mark.parametrize("callback", [Throughput, Bottleneck])
def test_validating_alone_is_no_mistake(project, callback: type[Callback]) -> None:
    project.fit(max_steps=1)
    project.trainer.callbacks.append(callback())
    project.trainer.validate(Plain(), DataLoader(images(8), batch_size=4), verbose=False)
