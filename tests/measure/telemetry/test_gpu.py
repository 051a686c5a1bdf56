import math
import sys
from types import SimpleNamespace

import pytest
import torch

from imagenet_opt.measure.telemetry.gpu import GpuColumns, device_names

UUID = "3a5c1f6e-0b2d-4c47-9a51-0f6f2f1f8f11"


class Driver:
    """The functions of pynvml that the code calls, with two devices in the opposite order of CUDA's."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    class NVMLError_NoPermission(NVMLError):
        pass

    def __init__(self, *, uuids: tuple[str, ...] = ("GPU-other", f"GPU-{UUID}"), refuses: bool = False) -> None:
        self.uuids, self.refuses = uuids, refuses

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in self.uuids:
            raise self.NVMLError("Not Found")
        return self.uuids.index(uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> int:
        return {"00000000:1e:00.0": 0, "00000001:af:1f.0": 1}[bus_id]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=(3, 87)[handle], memory=50)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        if self.refuses:
            raise self.NVMLError_NoPermission("Insufficient Permissions")
        return SimpleNamespace(used=(2**20, 6 * 2**30)[handle], free=1, total=2)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if self.refuses:
            raise self.NVMLError_NotSupported("Not Supported")
        return (55_000, 212_500)[handle]


@pytest.mark.parametrize(
    ("driver", "missing"),
    [
        (Driver(), []),
        (Driver(uuids=("GPU-other", "GPU-parent-of-a-slice")), []),
        (Driver(refuses=True), ["gpu_power_watts", "gpu_memory_used_gib"]),
    ],
    ids=["by UUID", "by PCI bus id", "no power, no permission for the memory"],
)
def test_values_of_cudas_device_and_nan_for_values_that_nvml_refuses(
    driver: Driver, missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(uuid=UUID, pci_domain_id=1, pci_bus_id=0xAF, pci_device_id=0x1F)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: {0: properties}[index])
    values = {"gpu_utilization_percent": 87.0, "gpu_memory_used_gib": 6.0, "gpu_power_watts": 212.5}
    row = GpuColumns(*device_names(0)).row()
    assert row == pytest.approx(values | dict.fromkeys(missing, math.nan), nan_ok=True)
