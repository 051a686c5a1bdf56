"""Peaks of real work, and of work on a clock that the test sets."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

from imagenet_opt.probe import device_peak
from imagenet_opt.probe.device_peak import best_seconds, matmul_peak, seconds_per_call

CPU = torch.device("cpu")


def test_the_best_size_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_peak.SIZES, "cpu", (8, 256))
    assert matmul_peak(CPU, torch.float32, seconds=0.05).size == 256  # 8 x 8 is all overhead
    monkeypatch.setitem(device_peak.SIZES, "cpu", (64,))
    assert matmul_peak(CPU, torch.bfloat16, seconds=0.01).size == 64


def test_rates_if_each_call_takes_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product has a multiplication and an addition for each of n^3."""
    monkeypatch.setitem(device_peak.SIZES, "cpu", (64,))
    monkeypatch.setattr("time.perf_counter", map((0.5).__mul__, itertools.count()).__next__)
    peak = matmul_peak(CPU, torch.float32, seconds=1.0)
    assert peak.tflops_per_second == pytest.approx(2 * 64**3 / 0.5 / 1e12)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], None]]:
    """Makes a function whose calls take these seconds, one after the other, on the only clock."""
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)

    def make(seconds: Iterator[float]) -> Callable[[], None]:
        def call() -> None:
            nonlocal now
            now += next(seconds)

        return call

    return make


def test_the_fastest_block_counts(call: Callable[..., Callable[[], None]]) -> None:
    assert best_seconds(call(iter([9.0, 4.0, 3.0, 1.0, 5.0, 5.0])), CPU, seconds=10.0) == 1.0


def test_the_second_call_determines_how_many_calls_fit(call: Callable[..., Callable[[], None]]) -> None:
    """The first call takes 100 s, each other call 2 s, so ten calls fit into 20 s."""
    seconds = iter([100.0, *[2.0] * 11])
    assert seconds_per_call(call(seconds), seconds=20) == 2.0
    assert next(seconds, None) is None


def test_a_slow_call_is_still_repeated_three_times() -> None:
    calls: list[str] = []
    seconds = seconds_per_call(lambda: calls.append("call"), seconds=1e-9, settle=lambda: calls.append("settle"))
    assert calls == ["call", "settle", "call", "settle", "settle", "call", "call", "call", "settle"]
    assert seconds > 0
