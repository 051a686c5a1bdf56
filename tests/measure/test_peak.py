"""Peaks are those of work that really happens, and say which size reached them."""

import pytest
import torch

from imagenet_opt.measure import peak
from imagenet_opt.measure.peak import best_seconds, matmul_peak, memory_bandwidth, timed

CPU = torch.device("cpu")


def test_the_best_size_wins() -> None:
    found = matmul_peak(CPU, torch.float32, seconds=0.05, sizes=(8, 256))
    assert found.size == 256  # 8 x 8 is all overhead
    assert found.tflops_per_second > 0
    assert matmul_peak(CPU, torch.bfloat16, seconds=0.01, sizes=(64,)).size == 64


def test_a_copy_reads_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peak.COPIED_MB, "cpu", 1)
    assert memory_bandwidth(CPU, seconds=0.01) > 0


def test_calls_are_counted_as_often_as_they_are_made() -> None:
    calls: list[None] = []
    assert timed(lambda: calls.append(None), CPU, num_calls=7) > 0
    assert len(calls) == 7
    assert 0 < best_seconds(lambda: calls.append(None), CPU, seconds=0.0) < 1
