"""Trainings with a known bottleneck log the bottleneck; all shares are of the total time."""

from itertools import pairwise

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import Checkpoint

from imagenet_opt.callbacks.bottleneck import Bottleneck
from tests.callbacks.conftest import Clock, SlowImages, SlowStep, images

CAUSES = {"busy", "read", "decode", "cpu", "main_process", "logging", "checkpoint", "validation", "copy", "unexplained"}


def rows(project) -> list[dict[str, float]]:
    """Shares by cause, in order, each once: Lightning repeats the last value in rows between."""
    found = [{k: v for k, v in row.items() if k.startswith("bottleneck/")} for _, row in project.logger.rows]
    distinct = [row for before, row in pairwise([{}, *found]) if row and row != before]
    return [{name.removeprefix("bottleneck/"): share for name, share in row.items()} for row in distinct]


class Slow(Callback):
    def __init__(self, clock: Clock, **hooks: float) -> None:
        for hook, seconds in hooks.items():
            setattr(self, hook, lambda *_, seconds=seconds: clock.spend(seconds))


class Saver(Slow, Checkpoint):
    """Saves; its name does not say so."""


def test_rows_are_twenty_steps_apart_and_add_up(project) -> None:
    bottleneck = Bottleneck()
    project.fit(bottleneck, data=images(400), max_epochs=1, log_every_n_steps=5)
    found = rows(project)
    assert len(found) == 4  # of 100 steps, the first one left out: after 25, 45, 65 and 85
    for row in found:
        assert row.keys() == CAUSES
        assert sum(row.values()) == pytest.approx(1, abs=1e-5)
    assert sum(bottleneck.summary().values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("hooks", "kind", "cause"),
    [
        ({"on_train_batch_end": 0.02}, Slow, "main_process"),
        ({"on_train_batch_start": 0.02}, Saver, "checkpoint"),
        ({"on_validation_batch_start": 0.3, "on_validation_start": 0.2}, Slow, "validation"),
    ],
)
def test_the_cause_of_a_wait_is_found(
    project, clock: Clock, hooks: dict[str, float], kind: type[Slow], cause: str
) -> None:
    bottleneck = Bottleneck()
    project.fit(bottleneck, kind(clock, **hooks), module=SlowStep(clock), data=images(160), max_epochs=2)
    shares = {name.removeprefix("bottleneck/"): share for name, share in bottleneck.summary().items()}
    assert shares["busy"] + shares[cause] == pytest.approx(1)
    assert shares[cause] == pytest.approx(2 / 3, abs=0.03)


def test_waits_for_the_loader_are_divided_as_its_workers_spent_their_time(project, clock: Clock) -> None:
    """40 ms of loading and 10 ms of training a step; of their time, workers read for 3/4 and decode for 1/4."""
    report, bottleneck = Callback(), Bottleneck()
    spent = {"batches": 20.0, "read_seconds": 0.6, "decode_seconds": 0.2}  # in each second
    measured = {"num_parts": 1, "num_ready": 0, "pop_metrics": dict}
    measured["totals"] = lambda: {name: number * clock.now for name, number in spent.items()}
    report.on_train_start = lambda trainer, module: vars(trainer.train_dataloader).update(measured)
    options = {"data": SlowImages(clock), "max_epochs": 5, "limit_val_batches": 0}
    project.fit(report, bottleneck, module=SlowStep(clock), **options)
    shares = [bottleneck.summary()[f"bottleneck/{cause}"] for cause in ("busy", "read", "decode")]
    assert shares == pytest.approx([0.2, 0.6, 0.2])
