"""Samples of a simulated driver of NVML; tests/gpu reads a real driver."""

import math
import sys
from types import SimpleNamespace

import pytest

from imagenet_opt.measure.telemetry.gpu_history import GpuColumns, nvml_words

UTILIZATION, POWER = 1, 0


def sample(microseconds: int, value: int) -> SimpleNamespace:
    return SimpleNamespace(timeStamp=microseconds, sampleValue=SimpleNamespace(uiVal=value))


class Driver:
    """The functions of pynvml that the code calls, with ring buffers that the test fills.

    supported: kinds of samples. has_memory: whether reads of the memory succeed.
    """

    NVML_GPU_UTILIZATION_SAMPLES, NVML_TOTAL_POWER_SAMPLES = UTILIZATION, POWER

    class NVMLError(Exception):
        value = 15

    class NVMLError_NotSupported(NVMLError):
        pass

    class NVMLError_NotFound(NVMLError):
        pass

    def __init__(self, supported: tuple[int, ...] = (UTILIZATION, POWER)) -> None:
        self.supported, self.is_open, self.has_memory = supported, False, True
        self.rings: dict[int, list[SimpleNamespace]] = {UTILIZATION: [], POWER: []}

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        if not self.has_memory:
            raise self.NVMLError
        return SimpleNamespace(used=3 * 2**30)

    def nvmlDeviceGetSamples(self, handle: str, kind: int, last_seen: int) -> tuple[int, list[SimpleNamespace]]:
        if kind not in self.supported:
            raise self.NVMLError_NotSupported
        samples = [sample for sample in self.rings[kind] if sample.timeStamp > last_seen]
        if not samples:
            raise self.NVMLError_NotFound
        return 1, samples


def drained(gpu: GpuColumns) -> dict[str, dict[str, list[float]]]:
    return {
        table: {name: column.tolist() for name, column in columns.items()} for table, columns in gpu.drain().items()
    }


def test_every_sample_of_the_driver_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    driver.rings = {UTILIZATION: [sample(1_000_000, 30), sample(1_166_000, 90)], POWER: [sample(1_020_000, 212_500)]}
    with GpuColumns("GPU-1", "00000000:1e:00.0") as gpu:
        assert drained(gpu) == {
            "gpu_utilization": {"unix_seconds": [1.0, 1.166], "gpu_utilization_percent": [30.0, 90.0]},
            "gpu_power": {"unix_seconds": [1.02], "gpu_power_watts": [212.5]},
        }
        assert drained(gpu) == {}
        driver.rings[UTILIZATION].append(sample(1_332_000, 100))
        assert drained(gpu) == {"gpu_utilization": {"unix_seconds": [1.332], "gpu_utilization_percent": [100.0]}}
        assert gpu.memory_used_gib() == 3.0
    assert not driver.is_open


def test_unsupported_samples_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(supported=(POWER,))
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    driver.rings = {UTILIZATION: [sample(1, 30)], POWER: [sample(1_020_000, 55_000)]}
    with GpuColumns("GPU-1", "00000000:1e:00.0") as gpu:
        assert drained(gpu).keys() == {"gpu_power"}


def test_an_error_leaves_a_gap_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    driver.has_memory = False
    with GpuColumns("GPU-1", "00000000:1e:00.0") as gpu:
        assert math.isnan(gpu.memory_used_gib()) and gpu.error == 15
        driver.has_memory = True
        assert gpu.memory_used_gib() == 3.0


def test_without_a_driver_there_are_no_columns() -> None:
    with GpuColumns("GPU-none", "ffffffff:ff:ff.0") as gpu:
        assert (drained(gpu), math.isnan(gpu.memory_used_gib())) == ({}, True)
        assert nvml_words(gpu.error).startswith(f"NVML error {gpu.error}: ")
    assert nvml_words(12) == "NVML error 12: NVML Shared Library Not Found"
