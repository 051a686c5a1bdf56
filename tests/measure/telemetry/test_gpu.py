import sys
from types import SimpleNamespace

import pytest
import torch

from imagenet_opt.measure.telemetry.gpu import gpu_readings

UUID = "3a5c1f6e-0b2d-4c47-9a51-0f6f2f1f8f11"


class Driver:
    """The part of pynvml that is used, with two devices in the opposite order of CUDA's."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    class NVMLError_NoPermission(NVMLError):
        pass

    def __init__(
        self, *, uuids: tuple[str, ...] = ("GPU-other", f"GPU-{UUID}"), power: bool = True, memory: bool = True
    ) -> None:
        self.uuids, self.power, self.memory, self.open_count = uuids, power, memory, 0

    def nvmlInit(self) -> None:
        self.open_count += 1

    def nvmlShutdown(self) -> None:
        self.open_count -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in self.uuids:
            raise self.NVMLError("Not Found")
        return self.uuids.index(uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> int:
        return {"00000000:1e:00.0": 0, "00000001:af:1f.0": 1}[bus_id]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=(3, 87)[handle], memory=50)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        if not self.memory:
            raise self.NVMLError_NoPermission("Insufficient Permissions")
        return SimpleNamespace(used=(2**20, 6 * 2**30)[handle], free=1, total=2)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if not self.power:
            raise self.NVMLError_NotSupported("Not Supported")
        return (55_000, 212_500)[handle]


def install(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    properties = SimpleNamespace(uuid=UUID, pci_domain_id=1, pci_bus_id=0xAF, pci_device_id=0x1F)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: {0: properties}[index])


@pytest.mark.parametrize("uuids", [("GPU-other", f"GPU-{UUID}"), ("GPU-other", "GPU-parent-of-a-slice")])
def test_reads_cudas_device_in_the_stated_units(monkeypatch: pytest.MonkeyPatch, uuids: tuple[str, ...]) -> None:
    install(monkeypatch, Driver(uuids=uuids))
    assert next(gpu_readings(0)) == {"utilization_percent": 87.0, "memory_used_gib": 6.0, "power_watts": 212.5}


def test_what_the_device_does_not_support_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(power=False))
    assert next(gpu_readings(0)) == {"utilization_percent": 87.0, "memory_used_gib": 6.0, "power_watts": None}


def test_what_nvml_refuses_to_this_user_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver(memory=False))
    assert next(gpu_readings(0)) == {"utilization_percent": 87.0, "memory_used_gib": None, "power_watts": 212.5}


def test_nvml_is_open_only_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    install(monkeypatch, driver)
    readings = gpu_readings(0)
    assert driver.open_count == 0
    next(readings)
    next(readings)
    assert driver.open_count == 1
    readings.close()
    assert driver.open_count == 0
