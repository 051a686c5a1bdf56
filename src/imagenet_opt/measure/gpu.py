"""What NVML says of one CUDA device: how busy, how full, how much power."""

from collections.abc import Callable
from typing import Any

from imagenet_opt.machine import GIB
from imagenet_opt.measure.sampler import Readings


def gpu_readings(cuda_index: int) -> Readings:
    """Endless readings of the device that torch calls `cuda:<cuda_index>`.

    | key | unit |
    |---|---|
    | `utilization_percent` | 0 to 100: share of the last 1/6 to 1 s in which at least one kernel ran |
    | `memory_used_gib` | GiB in use on the device, by every process |
    | `power_watts` | W, the whole board |

    A value is None where the device does not support it (MIG slices, some integrated GPUs), or where NVML refuses it to
    this user, as the memory of a board to a container that has only a MIG slice.
    NVML is opened at the first reading and closed with the generator.

    Raises pynvml.NVMLError at a reading, NVMLError_LibraryNotFound where there is no NVIDIA driver.
    Source: nvmlUtilization_t, nvmlDeviceGetPowerUsage in NVIDIA's NVML API reference.
    """
    return _readings(*device_names(cuda_index))


def device_names(cuda_index: int) -> tuple[str, str]:
    """UUID and PCI bus id of the device that torch calls `cuda:<cuda_index>`, in NVML's way of writing them."""
    import torch

    properties: Any = torch.cuda.get_device_properties(cuda_index)
    domain, bus, slot = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
    return f"GPU-{properties.uuid}", f"{domain:08x}:{bus:02x}:{slot:02x}.0"


def find_device(pynvml: Any, uuid: str, bus_id: str) -> Any:
    """NVML's handle, by UUID: CUDA_VISIBLE_DEVICES renumbers CUDA's devices but not NVML's.

    A MIG slice has a UUID that NVML does not know as a GPU's; the PCI bus id then finds the whole board.
    """
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)


def _readings(uuid: str, bus_id: str) -> Readings:
    import pynvml

    def supported(value: Callable[[], float]) -> float | None:
        try:
            return value()
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission):
            return None

    pynvml.nvmlInit()
    try:
        device = find_device(pynvml, uuid, bus_id)
        while True:
            yield {
                "utilization_percent": supported(lambda: float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)),
                "memory_used_gib": supported(lambda: pynvml.nvmlDeviceGetMemoryInfo(device).used / GIB),
                "power_watts": supported(lambda: pynvml.nvmlDeviceGetPowerUsage(device) / 1000),  # from mW
            }
    finally:
        pynvml.nvmlShutdown()
