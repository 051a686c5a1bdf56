"""Turns in this process, on a device that holds a few images."""

from pathlib import Path

import pytest

from imagenet_opt import machine
from imagenet_opt.errors import OutOfMemory
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.losses import LossJob, train
from imagenet_opt.study.turn import Job, Turn, measured
from tests.config.configs import composed
from tests.conftest import hold_images
from tests.study.studies import TINY

WHY = r"^4 images at once do not fit into the device's memory .*; set model\.micro_batch_size=2, "


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    own = (f"data.cache_dir={tmp_path}/cache", "data.num_train=100", "data.num_val=20", "data.num_workers=0")
    return (*TINY, *own, "trainer.accelerator=cpu")


def test_a_turn_without_enough_memory_fails(small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    hold_images(3, monkeypatch)
    with pytest.raises(OutOfMemory, match=WHY):
        measured(Job(small, 0.1, cold=False))
    with pytest.raises(OutOfMemory, match=WHY):
        train(LossJob(small, steps=2))


@pytest.mark.parametrize(("workers", "memory", "lacks"), [(99, 100, False), (2, 1, True)])
def test_a_loader_may_lack_memory(
    small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, memory: int, lacks: bool
) -> None:
    """In GiB. Of 99 workers, it is the CPUs that limit them; 1 GiB has room for one worker."""
    monkeypatch.setattr(machine, "available_memory", lambda: memory * 2**30)
    monkeypatch.setattr(machine, "usable_cpus", lambda: 2)
    config = composed(tmp_path, *small, f"data.num_workers={workers}")
    assert Testbed(config).lacks_memory is lacks


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_turn_measures_all_facts_and_keeps_its_micro_batches(
    small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_images(2, monkeypatch)
    overrides = (*small, "model.micro_batch_size=2")
    turn = Turn(**measured(Job(overrides, 0.1, cold=False)))
    assert turn.batch_size == 4 and turn.compile_seconds is None
    assert min(turn.full, turn.compute, turn.memory_gib) > 0 and 0 < turn.busy <= 1
    assert len(train(LossJob(overrides, steps=2))) == 2


def test_the_largest_size_of_a_growing_run_is_measured(
    small: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    growing = ("+callbacks=resolution_schedule", "callbacks.resolution_schedule.start=32")
    config = composed(tmp_path, *small, *growing, "callbacks.resolution_schedule.end=160", "data.image_size=160")
    testbeds = [Testbed(config), Testbed(config)]
    assert [testbed.loading.image_size for testbed in testbeds] == [160, 160]
    assert "resolution_schedule" not in testbeds[0].config.callbacks
    assert "resolution_schedule" in config.callbacks, "the user's configuration stays as it was"
    assert capsys.readouterr().err.count("images grow to 160 pixels (callbacks.resolution_schedule)") == 1


def test_one_process_of_several_is_measured_and_a_line_says_this(
    small: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        Testbed(composed(tmp_path, *small, "trainer.devices=7"))
    assert capsys.readouterr().err.count("7 processes (trainer.devices): measured with one") == 1
