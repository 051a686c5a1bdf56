"""Reads utilization, memory and power of a CUDA device from NVML."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from imagenet_opt.machine import GIB
from imagenet_opt.measure.telemetry.sampler import Readings


def gpu_readings(cuda_index: int) -> Readings:
    """Endless readings of the device that torch calls `cuda:<cuda_index>`.

    | key | unit |
    |---|---|
    | `utilization_percent` | 0 to 100: share of the last 1/6 to 1 s in which at least one kernel ran |
    | `memory_used_gib` | GiB in use on the device, by every process |
    | `power_watts` | W, the whole board |

    A value is None if the device does not support it (MIG slices, some integrated GPUs), or if NVML denies access, as
    to the memory of a board in a container that has only a MIG slice.
    NVML is opened at the first reading and closed with the generator.

    Raises pynvml.NVMLError at a reading, NVMLError_LibraryNotFound where there is no NVIDIA driver.
    Source: nvmlUtilization_t, nvmlDeviceGetPowerUsage in NVIDIA's NVML API reference.
    """
    return _readings(*device_names(cuda_index))


def device_names(cuda_index: int) -> tuple[str, str]:
    """UUID and PCI bus id of the device that torch calls `cuda:<cuda_index>`, in NVML's notation."""
    import torch

    properties: Any = torch.cuda.get_device_properties(cuda_index)
    domain, bus, slot = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
    return f"GPU-{properties.uuid}", f"{domain:08x}:{bus:02x}:{slot:02x}.0"


def find_device(pynvml: Any, uuid: str, bus_id: str) -> Any:
    """NVML's handle, by UUID: CUDA_VISIBLE_DEVICES renumbers CUDA's devices but not NVML's.

    NVML does not accept the UUID of a MIG slice for a GPU; the PCI bus id then finds the whole board.
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


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """State of a GPU by NVML; None for values that this GPU or driver does not provide.

    index: NVML's index, as nvidia-smi uses it. clock_reasons: bits of nvmlClocksEventReasons. clock_mhz: of the SMs,
    now and at most. others: pid, name and MiB of each other process that computes on the GPU; None for a board in MIG
    mode, which lists the processes of all slices.
    """

    index: int
    name: str
    clock_reasons: int | None = None
    clock_mhz: tuple[int, int] | None = None
    others: tuple[tuple[int, str, int], ...] | None = None


def read_gpu(cuda_index: int) -> GpuState | None:
    """The present state; clocks are meaningful only while the GPU computes. None without NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return _state(pynvml, find_device(pynvml, *device_names(cuda_index)))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _state(nvml: Any, device: Any) -> GpuState:
    def supported(value: Callable[[], T]) -> T | None:
        try:
            return value()
        except nvml.NVMLError:
            return None

    now, most = nvml.nvmlDeviceGetClockInfo, nvml.nvmlDeviceGetMaxClockInfo
    in_slices = supported(lambda: bool(nvml.nvmlDeviceGetMigMode(device)[0]))
    return GpuState(
        index=nvml.nvmlDeviceGetIndex(device),
        name=nvml.nvmlDeviceGetName(device),
        clock_reasons=supported(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(device))),
        clock_mhz=supported(lambda: (now(device, nvml.NVML_CLOCK_SM), most(device, nvml.NVML_CLOCK_SM))),
        others=None if in_slices else supported(lambda: _others(nvml, device)),
    )


def _others(nvml: Any, device: Any) -> tuple[tuple[int, str, int], ...]:
    """Other processes on the GPU. In a container NVML may list this process under a pid of the host, which is unknown
    here; one unknown pid then counts as the pid of this process."""
    this = psutil.Process()
    ours = {this.pid, *(child.pid for child in this.children(recursive=True))}
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    running = {process.pid: (process.usedGpuMemory or 0) >> 20 for process in processes}
    names = {process.pid: process.name() for process in psutil.process_iter() if process.pid in running}
    unknown = [pid for pid in running if pid not in names]
    hidden = set(unknown[:1]) if not ours & set(running) else set()
    others = [pid for pid in running if pid not in ours | hidden]
    return tuple((pid, names.get(pid, "in another container"), running[pid]) for pid in others)
