"""What a loader gives, of batches that say when they were made; the clock is the test's own."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.probe import throughput
from imagenet_opt.probe.fit.stock import batches_per_round
from imagenet_opt.probe.fit_timer import FitTiming
from imagenet_opt.probe.throughput import Span, drain, fit_ceiling

WORKERS = 2


class Made(list[int]):
    """A batch of images, made at a moment in so many seconds of its worker."""

    def __init__(self, num_images: int, made_at: float, decode_seconds: float) -> None:
        super().__init__(range(num_images))
        self.stats = SimpleNamespace(made_at=made_at, reads_in_flight=32, decode_seconds=decode_seconds)


class SlowLoader:
    """Two workers that end a batch of 256 images every `seconds`, at the same time; each is there when it is made.

    late: seconds that the process which takes the batches comes late for the first one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, *, late: float = 0.0, num: int = 1000) -> None:
        self.seconds, self.late, self.num = seconds, late, num
        self.now = 0.0
        self.num_given = 0
        self.loader = SimpleNamespace(num_workers=WORKERS, prefetch_factor=4)
        self.sampler = SimpleNamespace(num_parts=1)
        self.decode_seconds = min(0.3, seconds)
        monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def __iter__(self) -> Iterator[Any]:
        self.now = self.late
        for number in range(self.num):
            made_at = (number // WORKERS + 1) * self.seconds + 1e-4 * (number % WORKERS)
            self.now = max(self.now + 1e-4, made_at)
            self.num_given += 1
            yield Made(256, made_at, self.decode_seconds)

    def pop_metrics(self) -> dict[str, float]:
        read = max(0.0, self.seconds - self.decode_seconds)
        means = {"read_seconds": read, "decode_seconds": self.decode_seconds, "mb_read": 28.0, "reads_in_flight": 32}
        return {f"loader/{name}": float(value) for name, value in means.items()}

    def close(self) -> None:
        pass


def test_batches_that_come_at_once_are_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 x 256 images every 4.7 s are 109 images/s; after 8 s the second of two batches comes 0.1 ms after the first."""
    loader: Any = SlowLoader(monkeypatch, 4.7)
    assert drain(loader, Span(2, longest=30)).images_per_second == pytest.approx(512 / 4.7, rel=0.01)


def test_without_time_for_enough_batches_there_is_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = SlowLoader(monkeypatch, 4.7)
    reason = r"5 batches of 256 images were ready after 14 s, 7 are needed"
    remedy = r"raise --budget or lower data\.batch_size"
    with pytest.raises(
        ConfigError, match=rf"^not measured: storage is too slow for the budget \({reason}\); {remedy}$"
    ):
        drain(loader, Span(2, longest=10))


def test_decoding_that_is_too_slow_is_not_called_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = SlowLoader(monkeypatch, 4.7)
    loader.decode_seconds = 4.0
    with pytest.raises(ConfigError, match="decoding is too slow for the budget"):
        drain(loader, Span(1))


def test_a_stock_that_was_made_while_nobody_asked_is_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes 60 s late finds 100 batches at 0.1 ms; they were made 1.2 s apart, two at a time."""
    loader: Any = SlowLoader(monkeypatch, 1.2, late=60.0)
    assert drain(loader, Span(0.001, longest=120)).images_per_second == pytest.approx(512 / 1.2, rel=0.01)


def test_what_was_read_ahead_of_the_first_batches_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = SlowLoader(monkeypatch, 0.5)
    drain(loader, Span(1), skipped_rounds=3)
    few: Any = SlowLoader(monkeypatch, 0.5, num=3 * WORKERS)
    with pytest.raises(ConfigError, match="6 batches of 0 images"):
        drain(few, Span(1), skipped_rounds=3)
    assert loader.num_given > 3 * WORKERS


def test_more_images_than_the_workers_can_have_made_are_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says that it decodes 0.6 s for a batch; two of them cannot end one each every 0.1 s."""
    loader: Any = SlowLoader(monkeypatch, 0.1)
    loader.decode_seconds = 0.6
    with pytest.raises(ConfigError, match=r"^not measured: [0-9,]+ img/s need .* s of work in .* one of 2 workers"):
        drain(loader, Span(2))


def test_a_full_run_is_not_faster_than_the_workers() -> None:
    """Ten steps of 10 ms and 64 images, each of which takes a worker 2 ms: 6,400 images/s, of 1,000 at most."""
    steps: dict[str, Any] = {"stamps": [0.01 * i for i in range(11)], "num_images": [0] + [64] * 10}
    seen = FitTiming(**steps, num_workers=2.0, making_seconds=0.002)
    with pytest.raises(ConfigError, match="not measured: 6,400 img/s need"):
        fit_ceiling(seen)
    stock = FitTiming(**steps, num_workers=2.0, making_seconds=0.002, images_before=640.0)
    assert fit_ceiling(stock).images_per_second == pytest.approx(6400), "all were made before"


@pytest.mark.parametrize(("num_workers", "num_parts", "batches"), [(8, 1, 8), (8, 8, 1), (2, 8, 1), (5, 2, 3)])
def test_workers_that_make_parts_finish_fewer_batches_in_a_round(num_workers, num_parts, batches) -> None:
    assert batches_per_round(num_workers, num_parts) == batches
