"""The rate that a step used is what is logged."""

import pytest
import torch

from imagenet_opt.callbacks.learning_rate import LearningRate
from tests.callbacks.conftest import Plain


class Falling(Plain):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def test_each_row_has_the_rate_of_its_step(project) -> None:
    project.fit(LearningRate(), module=Falling())
    rows = [(step, row["lr"]) for step, row in project.logger.rows if "lr" in row]
    assert rows == [(step, pytest.approx(1 / (1 + step))) for step in (4, 9, 14, 19)]
