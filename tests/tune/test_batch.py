"""The search for a batch: few trials find the largest that fits; a larger batch is used only if it is faster."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_opt.errors import ConfigError, OutOfMemory
from imagenet_opt.measure.stats.rounds import Deadline, OutOfTime, TurnFailed
from imagenet_opt.probe.isolated import Hung
from imagenet_opt.probe.memory import MemoryTrials
from imagenet_opt.tune.batch import Batch, _fit, _grow
from imagenet_opt.tune.device_turns import Changes, Turns


@dataclass
class Holding(MemoryTrials):
    """Trials on a device that holds `capacity` images at once, with time for `num` trials."""

    capacity: int = 0
    num: int = 100

    def _try(self, batch: int, micro: int | None, limit_seconds: float) -> Any:
        if len(self.tried) == self.num:
            raise OutOfTime
        return {"peak_gib": 1.0 if (micro or batch) <= self.capacity else None}


@pytest.mark.parametrize(
    ("wanted", "capacity", "fitting", "changes"),
    [
        (384, 200, 200, ("model.micro_batch_size=192",)),
        (384, 700, 696, ()),
        (50, 50, 50, ()),
        (50, 49, 48, ("model.micro_batch_size=32",)),
        (50, 4000, 1024, ()),
        (6, 1, 1, ("model.micro_batch_size=1",)),
    ],
)
def test_the_wanted_batch_is_kept(wanted: int, capacity: int, fitting: int, changes: tuple[str, ...]) -> None:
    batch = Batch(wanted)
    _fit(batch, Holding(OmegaConf.create(), capacity=capacity), wanted, 1024)
    assert (batch.fitting, batch.changes) == (fitting, changes)


def test_without_more_time_the_largest_trial_that_fits_counts() -> None:
    batch = Batch(256)
    _fit(batch, Holding(OmegaConf.create(), capacity=600, num=2), 256, 1024)
    assert (batch.fitting, batch.changes) == (512, ())
    assert batch.notes == ["not tried: budget (other batch sizes)"]


@pytest.mark.parametrize("wanted", [1, 64])
def test_a_device_without_memory_for_one_image_is_an_error(wanted: int) -> None:
    trials = Holding(OmegaConf.create({"data": {"image_size": 224}, "callbacks": {}}))
    with pytest.raises(OutOfMemory, match=r"not even 1 images fit.*224 px.*data.image_size"):
        _fit(Batch(wanted), trials, wanted, 1024)
    assert [trial.batch for trial in trials.tried].count(1) == 1


@dataclass
class Ending(MemoryTrials):
    """Trials that end with `error`, from batches of `least` on."""

    error: Exception = field(default_factory=TurnFailed)
    least: int = 1

    def _try(self, batch: int, micro: int | None, limit_seconds: float) -> Any:
        if batch < self.least:
            return {"peak_gib": 1.0}
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        TurnFailed("killed by signal 9"),
        TurnFailed("killed by signal 6: what():  std::bad_alloc"),
        Hung("not finished after 600 s"),
    ],
)
def test_only_memory_makes_a_batch_too_large(error: Exception) -> None:
    assert not Ending(OmegaConf.create(), error=error).fits(8)
    with pytest.raises(ConfigError, match="8 images cannot be tried: ImportError: no timm"):
        Ending(OmegaConf.create(), error=TurnFailed("ImportError: no timm")).fits(8)
    with pytest.raises(ConfigError, match=r"cannot be tried: .*nvidia-smi -c 0"):
        busy = TurnFailed("AcceleratorError: CUDA-capable device(s) is/are busy or unavailable")
        Ending(OmegaConf.create(), error=busy).fits(8)


def test_a_trial_with_little_time_does_not_decide_about_memory() -> None:
    hung = Hung("not finished after 60 s")
    with pytest.raises(OutOfTime):
        Ending(OmegaConf.create(), limit=lambda: 60.0, error=hung).fits(8)
    with pytest.raises(ConfigError, match="no time was left to try whether 256 images fit; raise --budget"):
        _fit(Batch(256), Ending(OmegaConf.create(), limit=lambda: 60.0, error=hung), 256, 1024)
    batch = Batch(256)
    _fit(batch, Ending(OmegaConf.create(), limit=lambda: 60.0, error=hung, least=512), 256, 1024)
    assert (batch.fitting, batch.changes) == (256, ())
    assert batch.notes == ["not tried: budget (other batch sizes)"]


class Paced(Turns):
    """A device with a rate for each batch size, and time for `num_turns` turns. Other sizes fail."""

    def __init__(self, rates: dict[int, float], *, num_turns: int = 100) -> None:
        super().__init__((), 10, Deadline(60), lambda what: None)
        self.rates, self.num_turns = rates, num_turns
        self.measured: list[Changes] = []

    def rate(self, changes: Changes, seconds: float, *, share: float, name: str) -> float:
        if len(self.measured) == self.num_turns:
            raise OutOfTime
        self.measured.append(changes)
        if (rate := self.rates.get(int(changes[-1].removeprefix("data.batch_size=")))) is None:
            raise TurnFailed("not compiled and measured within 20 s: budget")
        return rate


KEPT = ("trainer.precision=mixed",)


@pytest.mark.parametrize(
    ("rates", "size", "rate"),
    [
        ({64: 100.0, 128: 130.0, 200: 120.0}, 128, 130.0),
        ({64: 100.0, 128: 110.0, 200: 120.0}, 200, 120.0),
        ({64: 100.0, 128: 100.0, 200: 99.0}, 64, 100.0),  # an equal rate keeps the batch of the recipe
        ({64: 100.0, 128: 90.0, 200: 80.0}, 64, 100.0),
        ({}, 64, None),
    ],
)
def test_a_larger_batch_is_used_only_if_it_is_faster(rates: dict[int, float], size: int, rate: float | None) -> None:
    batch, turns = Batch(64, fitting=200), Paced(rates)
    _grow(batch, turns, KEPT, 1.0, 0.9)
    assert (batch.size, batch.rate) == (size, rate)
    assert batch.changes == (() if size == 64 else (f"data.batch_size={size}",))
    assert {changes[:-1] for changes in turns.measured} == {KEPT}, "each turn has the earlier changes"
    reason = "larger batches are not compared: not compiled and measured within 20 s: budget"
    assert batch.notes == ([] if rates else [reason])


def test_a_larger_batch_without_all_its_turns_is_not_used() -> None:
    batch = Batch(64, fitting=128)
    _grow(batch, Paced({64: 100.0, 128: 130.0}, num_turns=4), KEPT, 1.0, 0.9)
    assert (batch.size, batch.changes) == (64, ())
