"""The average is that of Lightning's callback with TensorFlow's rise of the decay, but lies on the training device and
costs no wait for it."""

from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from imagenet_opt.callbacks.ema import Ema
from tests.callbacks.conftest import Plain, Project


class RisingAverage(WeightAveraging):
    """Lightning's average, with the decay of TensorFlow's ExponentialMovingAverage. torch copies the first weights."""

    def __init__(self, decay: float, every: int) -> None:
        def average(old: Tensor, new: Tensor, num_averaged: Tensor) -> Tensor:
            num_updates = int(num_averaged) - 1
            share = min(decay, (1 + num_updates) / (10 + num_updates))
            return share * old + (1 - share) * new

        super().__init__(avg_fn=average)
        self.every = every

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None and step_idx % self.every == 0


def test_bfloat16_weights_have_a_float32_average_that_validations_do_not_round(project: Project) -> None:
    ema, watch, averages = Ema(decay=0.5), Callback(), list[Tensor]()

    def average(trainer: Any, module: Plain, *_: Any) -> None:
        assert module.net[3].weight.dtype == torch.bfloat16 and ema._average_model is not None
        weight, last = module.net[3].weight.float(), averages[-1] if averages else torch.zeros(())
        decay = min(0.5, len(averages) / (9 + len(averages)))
        averages.append(decay * last + (1 - decay) * weight)
        torch.testing.assert_close(ema._average_model.module.net[3].weight, averages[-1], atol=1e-6, rtol=1e-6)

    watch.on_train_batch_end = average
    project.fit(ema, watch, precision="bf16-true")
    assert len(averages) == 20


@pytest.mark.parametrize(("decay", "every"), [(0.5, 1), (0.3, 3), (0.9998, 1)])
def test_the_average_is_that_of_lightnings_class(project: Project, decay: float, every: int) -> None:
    ours = project.fit(Ema(decay=decay, update_every_n_steps=every), module=Plain())
    theirs = Project().fit(RisingAverage(decay, every), module=Plain())
    for (name, average), expected in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        if average.is_floating_point():
            torch.testing.assert_close(average, expected, msg=name)
    assert int(ours.net[1].num_batches_tracked) == (20 if every == 1 else 19)  # copied at the last update
