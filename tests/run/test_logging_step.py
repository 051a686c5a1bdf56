"""The question agrees with the rows that Lightning writes."""

from typing import Any

import pytest
from torch import Tensor

from imagenet_opt.run.logging_step import is_logging_step
from tests.callbacks.conftest import Plain, Project


class Asking(Plain):
    """Logs in every step, and keeps the steps at which the answer was yes, in the step and at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.in_step: list[int] = []
        self.at_end: list[int] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.log("batch", float(len(self.seen)))
        if is_logging_step(self.trainer):
            self.in_step.append(len(self.seen))
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, *_: Any) -> None:
        if is_logging_step(self.trainer):
            self.at_end.append(len(self.seen) - 1)


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"log_every_n_steps": 5}, [4, 9, 14, 19]),
        ({"log_every_n_steps": 3}, [2, 5, 8, 11, 14, 17]),
        ({"log_every_n_steps": 1, "max_steps": 3}, [0, 1, 2]),
        ({"log_every_n_steps": 2, "accumulate_grad_batches": 3}, [5, 9, 15, 19]),
        ({"log_every_n_steps": 0}, []),
    ],
)
def test_a_batch_before_a_written_row_is_a_logging_step(options: dict[str, int], batches: list[int]) -> None:
    project, module = Project(), Asking()
    project.fit(module=module, **options)
    assert project.logger.values("batch") == batches
    assert module.in_step == module.at_end == batches
