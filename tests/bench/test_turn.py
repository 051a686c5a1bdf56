"""A turn's counts and times, on loaders with an injected clock."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from imagenet_opt.bench import turn
from imagenet_opt.bench.job import Job
from imagenet_opt.bench.turn import run_turn, take_turn
from imagenet_opt.measure.stats.rounds import TurnFailed


class Loader:
    """Batches of 4 images: the first after 10 s, the next five after 3 s each, all others after 2 s."""

    def __init__(self, num_batches: int = 100) -> None:
        self.now, self.num_batches, self.num_taken = 0.0, num_batches, 0

    def __iter__(self) -> Iterator[list[int]]:
        for i in range(self.num_batches):
            self.now += 10 if i == 0 else 3 if i < 6 else 2
            self.num_taken += 1
            yield [i] * 4

    def pop_metrics(self) -> dict[str, float]:
        num_taken, self.num_taken = self.num_taken, 0
        return {"batches": num_taken}


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Loader:
    loader = Loader()
    monkeypatch.setattr(turn.time, "perf_counter", lambda: loader.now)
    return loader


def test_start_and_warm_up_are_left_out_and_the_first_batch_is_checked(loader: Loader) -> None:
    checked: list[list[int]] = []
    result = take_turn(lambda: loader, num_warmup=6, num_batches=5, check=checked.append)
    assert (result.num_images, result.seconds, result.images_per_second) == (20, 10.0, 2.0)
    assert (result.first_batch_seconds, result.stages, result.num_made) == (10.0, {"batches": 5}, None)
    assert checked == [[0] * 4]

    def settle() -> None:  # waits for unfinished work of the device
        loader.now += 0.5

    assert take_turn(lambda: loader, num_warmup=6, num_batches=5, settle=settle).seconds == 10.5


@pytest.mark.parametrize(("num_batches", "message"), [(0, "no batch"), (4, "after 4 of 6"), (5, "after 5 of 6")])
def test_too_few_batches_are_an_error(num_batches: int, message: str, loader: Loader) -> None:
    loader.num_batches = num_batches
    with pytest.raises(ValueError, match=message):
        take_turn(lambda: loader, num_warmup=4, num_batches=2)


def test_batches_tell_whether_they_were_made_in_the_window(loader: Loader) -> None:
    """Each batch of 4 images is made 9 s before it is taken; the five batches are taken 3, 2, 2, 2 and 2 s apart."""

    class Batch(list[int]):
        stats: SimpleNamespace

    def batches() -> Iterator[Batch]:
        for batch in loader:
            made = Batch(batch)
            made.stats = SimpleNamespace(made_at=loader.now - 9)
            yield made

    assert take_turn(batches, num_warmup=5, num_batches=5).num_made == 8


def test_an_impossible_rate_fails_the_turn(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first: 90 of 100 batches were made before the window. The second: more images than the CPUs can write."""
    fine = {"num_images": 600, "seconds": 1.0, "first_batch_seconds": 0.1, "stages": {}, "num_made": 580}

    def call(**changes: float | None) -> Callable[..., dict[str, object]]:
        return lambda function, job: fine | changes

    for changes, reason in (
        ({"num_made": 60}, "only 60 images were prepared"),
        ({"num_images": 10**8, "num_made": None}, "CPUs cannot decode more than"),
    ):
        monkeypatch.setattr(turn, "call_isolated", call(**changes))
        with pytest.raises(TurnFailed, match=f"^not measured: .*{reason}"):
            run_turn(job)
    monkeypatch.setattr(turn, "call_isolated", call())
    assert run_turn(job).images_per_second == 600
