"""What a turn counts and what it leaves out, on loaders with a clock of their own."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from imagenet_opt.bench import turn
from imagenet_opt.bench.turn import take_turn


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(turn.time, "perf_counter", lambda: self.now)


class Loader:
    """Batches of 4 images: the first after 10 s, the next five after 3 s each, all others after 2 s."""

    def __init__(self, clock: Clock, num_batches: int = 100) -> None:
        self.clock, self.num_batches, self.drained = clock, num_batches, 0

    def __iter__(self) -> Iterator[list[int]]:
        for i in range(self.num_batches):
            self.clock.now += 10 if i == 0 else 3 if i < 6 else 2
            self.drained += 1
            yield [i] * 4

    def pop_metrics(self) -> dict[str, float]:
        batches, self.drained = self.drained, 0
        return {"batches": batches}


def test_start_and_warm_up_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    found = take_turn(lambda: Loader(clock), num_warmup=6, num_batches=5)
    assert (found.num_images, found.seconds, found.images_per_second) == (20, 10.0, 2.0)
    assert found.first_batch_seconds == 10.0
    assert found.stages == {"batches": 5}


def test_what_the_device_still_does_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def settle() -> None:
        clock.now += 0.5

    assert take_turn(lambda: Loader(clock), num_warmup=6, num_batches=5, settle=settle).seconds == 10.5


def test_the_first_batch_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    take_turn(lambda: Loader(Clock(monkeypatch)), num_warmup=3, num_batches=1, check=seen.append)
    assert seen == [[0] * 4]


def test_a_loader_without_stages_has_none() -> None:
    assert take_turn(lambda: iter([[1], [2], [3]]), num_warmup=1, num_batches=2).stages == {}


@pytest.mark.parametrize(("num_batches", "message"), [(0, "no batch"), (4, "after 4 of 6"), (5, "after 5 of 6")])
def test_a_loader_that_ends_too_soon_is_no_measurement(num_batches: int, message: str, monkeypatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(ValueError, match=message):
        take_turn(lambda: Loader(clock, num_batches), num_warmup=4, num_batches=2)


def test_images_count_as_made_by_what_their_batches_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 4 images, each made 9 s before it is taken: of five, taken 3, 2, 2, 2 and 2 s apart, two."""
    clock = Clock(monkeypatch)

    class Batch(list[int]):
        stats: SimpleNamespace

    def batches() -> Iterator[Batch]:
        for batch in Loader(clock):
            made = Batch(batch)
            made.stats = SimpleNamespace(made_at=clock.now - 9)
            yield made

    assert take_turn(batches, num_warmup=5, num_batches=5).num_made == 8
    assert take_turn(lambda: Loader(Clock(monkeypatch)), num_warmup=5, num_batches=5).num_made is None
