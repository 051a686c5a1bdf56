"""Where a run stands, whichever hook asks, against batches counted by hand."""

from functools import partial
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer

from imagenet_opt.run.checkpoint.position import Position, position
from tests.callbacks.conftest import Plain, Project, Stream

HOOKS = (
    *("on_sanity_check_end", "on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end"),
    *("on_validation_start", "on_validation_end", "on_train_epoch_end", "on_train_end", "on_fit_end"),
)


class Ask(Callback):
    """Position at each hook, beside the number of batches that were trained on by then."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, Position]] = []
        for hook in HOOKS:
            setattr(self, hook, partial(self.ask, hook))

    def ask(self, hook: str, trainer: Trainer, module: Plain, *_: Any) -> None:
        self.found.append((hook, len(module.seen), position(trainer)))


@pytest.mark.parametrize(
    "options",
    [
        {"max_epochs": 3},
        {"max_steps": 13},
        {"data": Stream(), "max_steps": 13},
        {"accumulate_grad_batches": 4},
        {"val_check_interval": 5, "num_sanity_val_steps": 2},
    ],
)
def test_every_hook_gets_the_number_of_trained_batches(options: dict[str, Any]) -> None:
    project, ask = Project(), Ask()
    trained = len(project.fit(ask, **options).seen)
    assert len(ask.found) > 2 * trained
    for hook, num_batches, found in ask.found:
        assert found == divmod(num_batches, 10), hook
    assert position(project.trainer) == divmod(trained, 10)
