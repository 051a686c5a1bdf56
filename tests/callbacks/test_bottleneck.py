"""Trainings with a known bottleneck log the bottleneck; all shares are of the total time."""

import logging
from itertools import pairwise

import pytest
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint

from imagenet_opt.callbacks.bottleneck import Bottleneck
from imagenet_opt.measure.telemetry.thread_time import ThreadTime
from tests.callbacks.conftest import Clock, SlowImages, SlowStep, images

CAUSES = {"busy", "read", "decode", "cpu", "main_process", "logging", "checkpoint", "validation", "copy", "unexplained"}


def rows(project) -> list[dict[str, float]]:
    """Shares by cause, in order, each once: Lightning repeats the last value in rows between."""
    found = [{k: v for k, v in row.items() if k.startswith("bottleneck/")} for _, row in project.logger.rows]
    distinct = [row for before, row in pairwise([{}, *found]) if row and row != before]
    return [{name.removeprefix("bottleneck/"): share for name, share in row.items()} for row in distinct]


def logged_texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for record in caplog.records if (text := record.getMessage()).startswith("bottleneck: ")]


class Slow(Callback):
    def __init__(self, clock: Clock, **hooks: float) -> None:
        for hook, seconds in hooks.items():
            setattr(self, hook, lambda *_, seconds=seconds: clock.spend(seconds))


class GradientCheckpointing(Slow):
    """Saves nothing, whatever its name."""


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
        ({"on_train_batch_end": 0.02}, GradientCheckpointing, "main_process"),
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


def test_a_change_of_verdict_is_logged_once_with_a_remedy(
    project, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class SlowAfter(Callback):
        def on_train_batch_start(self, trainer: Trainer, *_) -> None:
            if trainer.global_step >= 60:
                clock.spend(0.03)

    options = {"data": images(800), "max_epochs": 1, "log_every_n_steps": 20, "limit_val_batches": 0}
    with caplog.at_level(logging.INFO):
        project.fit(Bottleneck(), SlowAfter(), module=SlowStep(clock), **options)
    main_process_texts = [text for text in logged_texts(caplog) if "the main process" in text]
    assert len(main_process_texts) == 1
    assert "% of the time" in main_process_texts[0] and "imagenet-opt doctor" in main_process_texts[0]


def test_a_short_run_says_nothing(project, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    bottleneck = Bottleneck()
    with caplog.at_level(logging.INFO):
        project.fit(bottleneck, data=SlowImages(clock), max_epochs=1)
    assert (rows(project), logged_texts(caplog), bottleneck.summary()) == ([], [], {})


def test_a_simulated_device_is_believed_and_a_starved_main_thread_is_found(
    project, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Device:
        busy_seconds = 0.0

    class Simulation(Callback):
        timeline = Device()

        def on_train_batch_start(self, *_) -> None:
            self.timeline.busy_seconds += 0.005
            queued.append(0.002)

    queued: list[float] = []
    monkeypatch.setattr("imagenet_opt.callbacks.bottleneck.thread_time", lambda: ThreadTime(queued=sum(queued)))
    bottleneck = Bottleneck()
    options = {"data": images(160), "max_epochs": 1, "limit_val_batches": 0}
    project.fit(Simulation(), bottleneck, module=SlowStep(clock), **options)
    assert bottleneck.summary()["bottleneck/busy"] == pytest.approx(0.5)
    assert bottleneck.summary()["bottleneck/cpu"] == pytest.approx(0.2)
