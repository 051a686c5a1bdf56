"""The search for a batch: few trials find the largest that fits; a larger batch is used only if it is faster."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_opt.errors import ConfigError, OutOfMemory
from imagenet_opt.measure.stats.rounds import Deadline, OutOfTime, TurnFailed
from imagenet_opt.probe.isolated import Hung
from imagenet_opt.probe.memory import MemoryTrials
from imagenet_opt.tune.batch import faster_batch, in_parts, largest_batch
from imagenet_opt.tune.device import Changes, Device

BUDGET = ["not tried: budget (other batch sizes)"]


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
    ("wanted", "capacity", "num", "fitting", "notes", "changes"),
    [
        (384, 200, 100, 200, [], ("model.micro_batch_size=192",)),
        (384, 700, 100, 696, [], ()),
        (50, 50, 100, 50, [], ()),
        (50, 49, 100, 48, [], ("model.micro_batch_size=32",)),
        (50, 4000, 100, 1024, [], ()),
        (6, 1, 100, 1, [], ("model.micro_batch_size=1",)),
        (256, 600, 2, 512, BUDGET, ()),
    ],
)
def test_the_wanted_batch_is_kept(
    wanted: int, capacity: int, num: int, fitting: int, notes: list[str], changes: Changes
) -> None:
    trials = Holding(OmegaConf.create(), capacity=capacity, num=num)
    assert largest_batch(trials, wanted, 1024) == (fitting, notes)
    if fitting < wanted:
        assert in_parts(trials, wanted, fitting)[0] == changes


@pytest.mark.parametrize("wanted", [1, 64])
def test_a_device_without_memory_for_one_image_is_an_error(wanted: int) -> None:
    trials = Holding(OmegaConf.create({"data": {"image_size": 224}, "callbacks": {}}))
    with pytest.raises(OutOfMemory, match=r"not even 1 images fit.*224 px.*data.image_size"):
        largest_batch(trials, wanted, 1024)
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
    ("error", "refused"),
    [
        (TurnFailed("killed by signal 9"), ""),
        (TurnFailed("killed by signal 6: what():  std::bad_alloc"), ""),
        (Hung("not finished after 600 s"), ""),
        (TurnFailed("ImportError: no timm"), "8 images cannot be tried: ImportError: no timm"),
        (TurnFailed("AcceleratorError: CUDA-capable device(s) is/are busy or unavailable"), "nvidia-smi -c 0"),
    ],
)
def test_only_memory_makes_a_batch_too_large(error: Exception, refused: str) -> None:
    trials = Ending(OmegaConf.create(), error=error)
    if refused:
        with pytest.raises(ConfigError, match=refused):
            trials.fits(8)
    else:
        assert not trials.fits(8)


def test_a_trial_with_little_time_does_not_decide_about_memory() -> None:
    trials = Ending(OmegaConf.create(), limit=lambda: 60.0, error=Hung("not finished after 60 s"))
    with pytest.raises(ConfigError, match="raise --budget"):
        largest_batch(trials, 256, 1024)
    trials.least = 512
    assert largest_batch(trials, 256, 1024) == (256, BUDGET)


class Paced(Device):
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


@pytest.mark.parametrize(
    ("rates", "num_turns", "size", "rate"),
    [
        ({64: 100.0, 128: 130.0, 200: 120.0}, 100, 128, 130.0),
        ({64: 100.0, 128: 110.0, 200: 120.0}, 100, 200, 120.0),
        ({64: 100.0, 128: 100.0, 200: 99.0}, 100, 64, 100.0),  # an equal rate keeps the batch of the recipe
        ({64: 100.0, 128: 130.0, 200: 90.0}, 4, 64, 100.0),  # not all rounds were measured
        ({}, 100, 64, None),
    ],
)
def test_a_larger_batch_is_used_only_if_it_is_faster(
    rates: dict[int, float], num_turns: int, size: int, rate: float | None
) -> None:
    device, kept = Paced(rates, num_turns=num_turns), ("trainer.precision=mixed",)
    found = faster_batch(device, kept, 64, 200, 1.0, 0.9)
    assert found[:2] == (size, rate) and bool(found[2]) == (rate is None)
    assert {changes[:-1] for changes in device.measured} == {kept}, "each turn has the earlier changes"
