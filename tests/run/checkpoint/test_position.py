"""Where a run stands, whichever hook asks, against batches counted by hand."""

from functools import partial
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer

from imagenet_opt.run.checkpoint.position import Position, position, rewrite_position
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
        {"max_steps": 20},
        {"data": Stream()},
        {"data": Stream(), "max_steps": 13},
        {"accumulate_grad_batches": 4},
        {"val_check_interval": 5, "num_sanity_val_steps": 2},
        {"limit_val_batches": 0},
    ],
)
def test_every_hook_gets_the_number_of_trained_batches(options: dict[str, Any]) -> None:
    project, ask = Project(), Ask()
    trained = len(project.fit(ask, **options).seen)
    assert len(ask.found) > 2 * trained
    for hook, num_batches, found in ask.found:
        assert found == divmod(num_batches, 10), hook
    assert position(project.trainer) == divmod(trained, 10)


def test_a_run_stopped_early_stands_where_it_stopped() -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer: Trainer, *rest: Any) -> None:
            trainer.should_stop = rest[-1] == 6

    project = Project()
    project.fit(Stop())
    assert position(project.trainer) == (0, 7)


@pytest.mark.parametrize(("place", "begun"), [(Position(2, 0), 2), (Position(2, 3), 3)])
def test_the_counters_of_a_checkpoint_say_that_nothing_is_half_done(place: Position, begun: int) -> None:
    half = {"ready": 24, "started": 24, "processed": 23, "completed": 23}
    progress = {"total": dict(half), "current": dict(half)}
    batches = {"total": dict(half), "current": dict(half), "is_last_batch": True}
    validation = {"total": dict(half), "current": dict(half), "is_last_batch": True}
    loader = {"epoch": 2, "step": 8, "seed": 0}
    loops = {
        "state_dict": {"combined_loader": [loader, {"of another library": 8}]},
        "epoch_progress": progress,
        "epoch_loop.batch_progress": batches,
        "epoch_loop.val_loop.batch_progress": validation,
    }
    checkpoint = {"epoch": 9, "loops": {"fit_loop": loops}}
    rewrite_position(checkpoint, place)
    epochs = {"ready": begun, "started": begun, "processed": 2, "completed": 2}
    assert checkpoint["epoch"] == 2
    assert progress == {"total": epochs, "current": epochs}
    assert set(batches["current"].values()) == {place.step}
    assert set(batches["total"].values()) == {23}
    assert batches["is_last_batch"] is False
    assert set(validation["total"].values()) == {0}
    assert loader == {"epoch": 2, "step": 7, "seed": 0}
