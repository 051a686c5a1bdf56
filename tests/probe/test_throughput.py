"""The rate of a loader, from the times at which its batches were made; the tests set the clock."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.probe import throughput
from imagenet_opt.probe.throughput import Span, drain

WORKERS = 2


class Made(list[int]):
    """A batch of images, with the time at which it was made and the seconds that its worker decoded."""

    def __init__(self, num_images: int, made_at: float, decode_seconds: float) -> None:
        super().__init__(range(num_images))
        self.stats = SimpleNamespace(made_at=made_at, reads_in_flight=32, decode_seconds=decode_seconds)


class SlowLoader:
    """Two workers; both finish a batch of 256 images every `seconds`, at the same time.

    late: time of the first request, in seconds; earlier batches wait. read: samples that are read for each batch.
    """

    def __init__(
        self, seconds: float, *, late: float = 0.0, num: int = 1000, decode_seconds: float = 0.3, read: float = 256
    ) -> None:
        self.seconds, self.late, self.num = seconds, late, num
        self.decode_seconds, self.read = decode_seconds, read
        self.now = 0.0
        self.num_delivered = 0
        self.num_ready, self.num_workers, self.prefetch_factor, self.num_parts = 0, WORKERS, 4, 1

    def __iter__(self) -> Iterator[Any]:
        self.now = self.late
        for number in range(self.num):
            made_at = (number // WORKERS + 1) * self.seconds + 1e-4 * (number % WORKERS)
            self.now = max(self.now + 1e-4, made_at)
            self.num_delivered += 1
            yield Made(256, made_at, self.decode_seconds)

    def totals(self) -> dict[str, float]:
        return {"num_read": 1000 + self.read * self.num_delivered}

    def pop_metrics(self) -> dict[str, float]:
        read = max(0.0, self.seconds - self.decode_seconds)
        means = {"read_seconds": read, "decode_seconds": self.decode_seconds, "mb_read": 28.0, "reads_in_flight": 32}
        return {f"loader/{name}": float(value) for name, value in means.items()}

    def close(self) -> None:
        pass


@pytest.fixture
def rate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """Images per second that `drain` measures of a loader, on the loader's clock."""

    def rate(loader: Any, span: Span, **options: int) -> float:
        monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=lambda: loader.now))
        return drain(loader, span, **options).images_per_second

    return rate


def test_batches_that_arrive_together_are_one_round(rate: Callable[..., float]) -> None:
    """2 x 256 images every 4.7 s are 109 images/s; after 8 s the second of two batches comes 0.1 ms after the first."""
    assert rate(SlowLoader(4.7), Span(2, longest=30)) == pytest.approx(512 / 4.7, rel=0.01)


def test_a_stock_that_was_made_earlier_does_not_raise_the_rate(rate: Callable[..., float]) -> None:
    """After 60 s, 100 batches are ready and arrive 0.1 ms apart; workers made them 1.2 s apart, two at a time."""
    assert rate(SlowLoader(1.2, late=60.0), Span(0.001, longest=120)) == pytest.approx(512 / 1.2, rel=0.01)


def test_files_that_were_read_ahead_do_not_raise_the_rate(rate: Callable[..., float]) -> None:
    """The workers make 256 images in the time in which they read 160."""
    assert rate(SlowLoader(0.5, read=160), Span(2, longest=30)) == pytest.approx(2 * 160 / 0.5, rel=0.01)


@pytest.mark.parametrize(
    ("decode_seconds", "span", "stage"), [(0.3, Span(2, longest=10), "storage"), (4.0, Span(1), "decoding")]
)
def test_too_few_batches_give_no_rate(
    decode_seconds: float, span: Span, stage: str, rate: Callable[..., float]
) -> None:
    with pytest.raises(ConfigError, match=rf"{stage} is too slow .*--budget .*data\.batch_size"):
        rate(SlowLoader(4.7, decode_seconds=decode_seconds), span)
