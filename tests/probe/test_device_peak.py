"""Peaks of real work, and of work on a clock that the test sets."""

import pytest
import torch

from imagenet_opt.probe import device_peak
from imagenet_opt.probe.device_peak import matmul_peak, seconds_per_call


def test_the_best_size_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product has a multiplication and an addition for each of n^3."""
    monkeypatch.setitem(device_peak.SIZES, "cpu", (8, 256))
    peak = matmul_peak(torch.device("cpu"), torch.float32, seconds=0.05)
    assert peak.size == 256 and peak.tflops_per_second > 0  # 8 x 8 is all overhead


def test_the_second_call_determines_how_many_calls_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call takes 100 s, each other call 2 s, so ten calls fit into 20 s."""
    now, seconds = [0.0], iter([100.0, *[2.0] * 11])

    def call() -> None:
        now[0] += next(seconds)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    assert seconds_per_call(call, seconds=20) == 2.0
    assert next(seconds, None) is None


def test_a_slow_call_is_still_repeated_three_times() -> None:
    calls: list[str] = []
    assert seconds_per_call(lambda: calls.append("call"), seconds=1e-9, settle=lambda: calls.append("settle")) > 0
    assert calls == ["call", "settle", "call", "settle", "settle", "call", "call", "call", "settle"]
