"""What is read of NVML's own samples, by a driver that is none: no real one has been asked by these tests."""

import math
import sys
from types import SimpleNamespace

import pytest

from imagenet_opt.measure.telemetry.gpu_history import GpuColumns, nvml_words

UTILIZATION, POWER = 1, 0


def sample(microseconds: int, value: int) -> SimpleNamespace:
    return SimpleNamespace(timeStamp=microseconds, sampleValue=SimpleNamespace(uiVal=value))


class Driver:
    """The part of pynvml that is used, with ring buffers that the test fills."""

    NVML_GPU_UTILIZATION_SAMPLES, NVML_TOTAL_POWER_SAMPLES = UTILIZATION, POWER

    class NVMLError(Exception):
        value = 15

    class NVMLError_NotSupported(NVMLError):
        pass

    class NVMLError_NotFound(NVMLError):
        pass

    def __init__(self, supported: tuple[int, ...] = (UTILIZATION, POWER)) -> None:
        self.supported, self.is_open = supported, False
        self.rings: dict[int, list[SimpleNamespace]] = {UTILIZATION: [], POWER: []}

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(used=3 * 2**30)

    def nvmlDeviceGetSamples(self, handle: str, kind: int, last_seen: int) -> tuple[int, list[SimpleNamespace]]:
        if kind not in self.supported:
            raise self.NVMLError_NotSupported
        found = [sample for sample in self.rings[kind] if sample.timeStamp > last_seen]
        if not found:
            raise self.NVMLError_NotFound
        return 1, found


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


def test_what_the_device_does_not_sample_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(supported=(POWER,))
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    driver.rings = {UTILIZATION: [sample(1, 30)], POWER: [sample(1_020_000, 55_000)]}
    with GpuColumns("GPU-1", "00000000:1e:00.0") as gpu:
        assert drained(gpu).keys() == {"gpu_power"}


def test_an_error_leaves_a_gap_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Moody(Driver):
        answers = False

        def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
            if not self.answers:
                raise self.NVMLError
            return super().nvmlDeviceGetMemoryInfo(handle)

    driver = Moody()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    with GpuColumns("GPU-1", "00000000:1e:00.0") as gpu:
        assert math.isnan(gpu.memory_used_gib()) and gpu.error == 15
        driver.answers = True
        assert gpu.memory_used_gib() == 3.0


def test_without_a_driver_there_are_no_columns() -> None:
    with GpuColumns("GPU-none", "ffffffff:ff:ff.0") as gpu:
        assert (drained(gpu), math.isnan(gpu.memory_used_gib())) == ({}, True)
        assert nvml_words(gpu.error).startswith(f"NVML error {gpu.error}: ")
    assert nvml_words(12) == "NVML error 12: NVML Shared Library Not Found"
