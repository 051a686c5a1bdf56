"""Peaks are those of work that really happens, and say which size reached them."""

import itertools

import pytest
import torch

from imagenet_opt.probe import device_peak
from imagenet_opt.probe.device_peak import best_seconds, matmul_peak, memory_bandwidth, seconds_per_call

CPU = torch.device("cpu")


def test_the_best_size_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_peak.SIZES, "cpu", (8, 256))
    assert matmul_peak(CPU, torch.float32, seconds=0.05).size == 256  # 8 x 8 is all overhead
    monkeypatch.setitem(device_peak.SIZES, "cpu", (64,))
    assert matmul_peak(CPU, torch.bfloat16, seconds=0.01).size == 64


def test_rates_on_a_clock_on_which_all_takes_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy reads and writes; a product has a multiplication and an addition for each of n^3."""
    monkeypatch.setitem(device_peak.COPIED_MB, "cpu", 1)
    monkeypatch.setitem(device_peak.SIZES, "cpu", (64,))
    monkeypatch.setattr("time.perf_counter", map((0.5).__mul__, itertools.count()).__next__)
    assert memory_bandwidth(CPU, seconds=1.0) == pytest.approx(2 * 1e6 / 0.5 / 1e9)
    found = matmul_peak(CPU, torch.float32, seconds=1.0)
    assert found.tflops_per_second == pytest.approx(2 * 64**3 / 0.5 / 1e12)


def test_the_fastest_block_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, taken = [0.0], iter([9.0, 4.0, 3.0, 1.0, 5.0, 5.0])
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += next(taken)

    assert best_seconds(work, CPU, seconds=10.0) == 1.0


def test_what_is_slower_than_the_stretch_is_still_done_three_times() -> None:
    calls: list[str] = []
    seconds = seconds_per_call(lambda: calls.append("call"), seconds=1e-9, settle=lambda: calls.append("settle"))
    assert calls == ["call", "settle", "call", "settle", "settle", "call", "call", "call", "settle"]
    assert seconds > 0


def test_a_slow_first_call_does_not_say_how_many_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 100 s, each of the others 2, of which 20 s hold ten."""
    clock, taken = [0.0], iter([100.0, *[2.0] * 11])
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def call() -> None:
        clock[0] += next(taken)

    assert seconds_per_call(call, seconds=20) == 2.0
    assert next(taken, None) is None
