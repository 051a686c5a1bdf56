"""The question agrees with the rows that Lightning writes."""

from typing import Any

import pytest
from lightning.pytorch import Callback
from torch import Tensor

from imagenet_opt.run.logging_step import is_logging_step
from tests.callbacks.conftest import Plain, Project

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


class Asking(Plain):
    """Logs in every step, and keeps the steps at which the answer was yes."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[int] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.log("batch", float(len(self.seen)))
        if is_logging_step(self.trainer):
            self.said.append(len(self.seen))
        return super().training_step(batch, batch_idx)


class AskAtTheEnd(Callback):
    def __init__(self) -> None:
        self.said: list[int] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if is_logging_step(trainer):
            self.said.append(len(pl_module.seen) - 1)


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
def test_it_is_yes_at_the_batches_after_which_a_row_is_written(options: dict[str, int], batches: list[int]) -> None:
    project, module, ask = Project(), Asking(), AskAtTheEnd()
    project.fit(ask, module=module, **options)
    assert [row["batch"] for _, row in project.logger.rows if "batch" in row] == batches
    assert module.said == ask.said == batches
