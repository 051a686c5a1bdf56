"""Which batch: what fits is found with few trials, and a larger one is taken only where it is surely faster."""

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
    """Trials on a device that holds `capacity` images at once, until there is no time for more."""

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
    found = Batch(wanted)
    _fit(found, Holding(OmegaConf.create(), capacity=capacity), wanted, 1024)
    assert (found.fitting, found.changes) == (fitting, changes)


def test_one_image_is_tried_once() -> None:
    trials = Holding(OmegaConf.create({"data": {"image_size": 224}, "callbacks": {}}))
    with pytest.raises(OutOfMemory, match="not even 1 images fit"):
        _fit(Batch(1), trials, 1, 1024)
    assert len(trials.tried) == 1


def test_where_the_time_ends_what_was_seen_to_fit_counts() -> None:
    found = Batch(256)
    _fit(found, Holding(OmegaConf.create(), capacity=600, num=2), 256, 1024)
    assert (found.fitting, found.changes) == (512, ())
    assert found.notes == ["not tried: budget: other batch sizes"]


def test_a_device_that_holds_nothing_is_said_so() -> None:
    config = OmegaConf.create({"data": {"image_size": 224}, "callbacks": {}})
    with pytest.raises(OutOfMemory, match=r"not even 1 images fit.*224 px.*data.image_size"):
        _fit(Batch(64), Holding(config), 64, 1024)


@dataclass
class Ending(MemoryTrials):
    """Trials that end otherwise, from batches of `least` on."""

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


def test_a_trial_that_was_given_little_time_says_nothing_about_memory() -> None:
    hung = Hung("not finished after 60 s")
    with pytest.raises(OutOfTime):
        Ending(OmegaConf.create(), limit=lambda: 60.0, error=hung).fits(8)
    with pytest.raises(ConfigError, match="no time was left to see whether 256 images fit; raise --budget"):
        _fit(Batch(256), Ending(OmegaConf.create(), limit=lambda: 60.0, error=hung), 256, 1024)
    found = Batch(256)
    _fit(found, Ending(OmegaConf.create(), limit=lambda: 60.0, error=hung, least=512), 256, 1024)
    assert (found.fitting, found.changes) == (256, ())
    assert found.notes == ["not tried: budget: other batch sizes"]


class Broken(Turns):
    """A device that computes no more."""

    def rate(self, changes: Changes, seconds: float, *, share: float, name: str) -> float:
        raise TurnFailed("not compiled and measured within 20 s: budget")


def test_what_was_found_stays_where_larger_batches_cannot_be_compared() -> None:
    found = Batch(64, fitting=256)
    _grow(found, Broken((), 10, Deadline(60), lambda what: None), (), 1.0, 0.9)
    assert (found.size, found.changes, found.rate) == (64, (), None)
    assert found.notes == ["larger batches are not compared: not compiled and measured within 20 s: budget"]


class Paced(Turns):
    """A device that takes so many images per second in batches of a size."""

    def __init__(self, rates: dict[int, float], *, num_turns: int = 100) -> None:
        super().__init__((), 10, Deadline(60), lambda what: None)
        self.rates, self.num_turns = rates, num_turns
        self.asked: list[Changes] = []

    def rate(self, changes: Changes, seconds: float, *, share: float, name: str) -> float:
        if len(self.asked) == self.num_turns:
            raise OutOfTime
        self.asked.append(changes)
        return self.rates[int(changes[-1].removeprefix("data.batch_size="))]


KEPT = ("trainer.precision=mixed",)


@pytest.mark.parametrize(
    ("rates", "size", "rate"),
    [
        ({64: 100.0, 128: 130.0, 200: 120.0}, 128, 130.0),
        ({64: 100.0, 128: 110.0, 200: 120.0}, 200, 120.0),
        ({64: 100.0, 128: 100.0, 200: 99.0}, 64, 100.0),  # as fast is not faster: the recipe's batch stays
        ({64: 100.0, 128: 90.0, 200: 80.0}, 64, 100.0),
    ],
)
def test_a_larger_batch_is_taken_only_where_it_is_faster(rates: dict[int, float], size: int, rate: float) -> None:
    found, turns = Batch(64, fitting=200), Paced(rates)
    _grow(found, turns, KEPT, 1.0, 0.9)
    assert (found.size, found.rate) == (size, rate)
    assert found.changes == (() if size == 64 else (f"data.batch_size={size}",))
    assert {changes[:-1] for changes in turns.asked} == {KEPT}, "each with what was found before"


def test_a_larger_batch_that_lacks_turns_is_not_taken() -> None:
    found = Batch(64, fitting=128)
    _grow(found, Paced({64: 100.0, 128: 130.0}, num_turns=4), KEPT, 1.0, 0.9)
    assert (found.size, found.changes) == (64, ())
