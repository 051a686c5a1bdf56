"""Measures the peak rate of a device in matrix products, and the time of a call."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

SIZES = {"cuda": (2048, 4096, 8192), "cpu": (512, 1024, 2048)}
"""Rows of square matrices. The fastest size differs from device to device."""

_LEAST_CALLS = 3


class MatmulPeak(NamedTuple):
    """tflops_per_second: rate of the fastest product of two matrices with `size` rows and columns."""

    tflops_per_second: float
    size: int


def matmul_peak(device: torch.device, dtype: torch.dtype, *, seconds: float) -> MatmulPeak:
    """The highest rate of several matrix sizes, each measured for its part of `seconds`, with torch's current settings
    for float32. A product takes 2 size^3 FLOPs. The matrices are random, since zeros are faster on a GPU with a power
    limit."""
    sizes = SIZES.get(device.type, SIZES["cpu"])
    return max(MatmulPeak(_tflops(device, dtype, size, seconds / len(sizes)), size) for size in sizes)


def _tflops(device: torch.device, dtype: torch.dtype, size: int, seconds: float) -> float:
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    settle = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    call_seconds = seconds_per_call(lambda: torch.mm(left, right, out=out), seconds=seconds, settle=settle)
    return 2 * size**3 / call_seconds / 1e12


def seconds_per_call(call: Callable[[], object], *, seconds: float, settle: Callable[[], None] = lambda: None) -> float:
    """Mean over about `seconds`, and over at least three calls. settle: waits for pending work of the device.

    The first call chooses algorithms and allocates memory, so it does not count. The time of the second call determines
    how many calls fit. A GPU gets all calls before the host waits once.
    """

    def timed(num_calls: int) -> float:
        settle()
        began = time.perf_counter()
        for _ in range(num_calls):
            call()
        settle()
        return (time.perf_counter() - began) / num_calls

    call()
    return timed(max(_LEAST_CALLS, round(seconds / max(timed(1), 1e-9))))
