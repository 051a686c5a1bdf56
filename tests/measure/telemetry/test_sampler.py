import logging
import threading
from collections.abc import Iterator

import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.telemetry.sampler import Reading, Readings, Sampler, next_due

TIMEOUT = 30


class Source:
    """Readings that the test delivers one by one; `taken` counts the requests of the sampler."""

    def __init__(self) -> None:
        self.offered = threading.Semaphore(0)
        self.taken = threading.Semaphore(0)
        self.closed = threading.Event()

    def readings(self, values: list[Reading], error: Exception | None = None) -> Readings:
        try:
            yield {"load": 1e9}  # the first reading does not count
            for value in values:
                self.taken.release()
                assert self.offered.acquire(timeout=TIMEOUT)
                yield value
            self.taken.release()
            if error:
                raise error
            while True:
                yield {}
        finally:
            self.closed.set()

    def give(self, count: int) -> None:
        """Deliver readings and wait until the sampler has counted them."""
        for _ in range(count):
            assert self.taken.acquire(timeout=TIMEOUT)
            self.offered.release()
        assert self.taken.acquire(timeout=TIMEOUT)
        self.taken.release()


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    sampler = Sampler("gpu", interval_seconds=0.001)
    yield sampler
    sampler.stop()


def test_means_of_each_window_and_of_the_run(sampler: Sampler) -> None:
    source = Source()
    sampler.start(source.readings([{"load": 10.0, "power": None}, {"load": 20.0}, {"load": None}, {"load": 60.0}]))
    source.give(3)
    assert sampler.pop_metrics() == {"gpu/load": 15.0}
    assert sampler.pop_metrics() == {}
    source.give(1)
    assert sampler.pop_metrics() == {"gpu/load": 60.0}
    assert sampler.means() == {"gpu/load": 30.0}


def test_an_error_is_kept_and_logged_once_and_the_means_stay(
    sampler: Sampler, caplog: pytest.LogCaptureFixture
) -> None:
    source, error = Source(), OSError("GPU is lost")
    with caplog.at_level(logging.WARNING):
        sampler.start(source.readings([{"load": 10.0}], error))
        source.give(1)
        assert source.closed.wait(TIMEOUT)
        sampler.stop()
    assert sampler.error is error
    assert [r.getMessage() for r in caplog.records] == ["gpu sampling ended, training continues: OSError: GPU is lost"]
    assert sampler.means() == {"gpu/load": 10.0}


def test_stop_ends_the_thread_and_closes_the_source(sampler: Sampler) -> None:
    source = Source()
    sampler.start(source.readings([{"load": 10.0}]))
    source.give(1)
    sampler.stop()
    assert source.closed.is_set()
    assert "gpu-sampler" not in [thread.name for thread in threading.enumerate()]
    sampler.stop()
    assert sampler.means() == {"gpu/load": 10.0}


def test_a_second_start_forgets_the_first_run(sampler: Sampler) -> None:
    for value in (10.0, 50.0):
        source = Source()
        sampler.start(source.readings([{"load": value}]))
        source.give(1)
    assert sampler.pop_metrics() == sampler.means() == {"gpu/load": 50.0}


@pytest.mark.parametrize(("now", "expected"), [(10.0, 12.0), (11.9, 12.0), (15.5, 16.0), (9.999, 12.0)])
def test_the_schedule_is_absolute_and_skips_missed_times(now: float, expected: float) -> None:
    assert next_due(10.0, now, 2.0) == expected


def test_an_interval_of_zero_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"callbacks\.gpu_utilization\.interval_seconds.*above 0"):
        Sampler("gpu", interval_seconds=0)
