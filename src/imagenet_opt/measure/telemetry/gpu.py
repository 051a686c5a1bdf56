"""Reads utilization, memory and power of a CUDA device from NVML."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

import psutil

from imagenet_opt.machine import GIB

_log = logging.getLogger(__name__)

_READ_SECONDS = 1.0  # reading the GPU takes longer than all other columns
T = TypeVar("T")


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


class GpuColumns:
    """Columns of a device, read once a second; names as of `device_names`.

    | column | unit |
    |---|---|
    | `gpu_utilization_percent` | 0 to 100: share of the last 1/6 to 1 s in which at least one kernel ran |
    | `gpu_memory_used_gib` | GiB in use on the device, by all processes |
    | `gpu_power_watts` | W, the whole board |

    A value is NaN if the device does not support it (MIG slices, some integrated GPUs), if NVML denies access, as to
    the memory of a board in a container that has only a MIG slice, or if NVML fails, which is logged once.
    Source: nvmlUtilization_t, nvmlDeviceGetPowerUsage in NVIDIA's NVML API reference.
    """

    def __init__(self, uuid: str, bus_id: str) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._has_failed = False
        self._read_at = -_READ_SECONDS
        self._row: dict[str, float] = {}
        self._device: Any = self._known(lambda: (pynvml.nvmlInit(), find_device(pynvml, uuid, bus_id))[1])

    def row(self) -> dict[str, float]:
        if (now := monotonic()) >= self._read_at + _READ_SECONDS:
            self._read_at, nvml, device = now, self._nvml, self._device
            self._row = {
                "gpu_utilization_percent": self._number(lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu),
                "gpu_memory_used_gib": self._number(lambda: nvml.nvmlDeviceGetMemoryInfo(device).used / GIB),
                "gpu_power_watts": self._number(lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000),  # from mW
            }
        return self._row

    def _number(self, read: Callable[[], float]) -> float:
        value = None if self._device is None else self._known(read)
        return math.nan if value is None else float(value)

    def _known(self, read: Callable[[], T]) -> T | None:
        """The value; None if NVML denies it or fails."""
        try:
            return read()
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_NoPermission):
            return None
        except self._nvml.NVMLError as error:
            if not self._has_failed:
                self._has_failed = True
                _log.warning("the GPU's numbers have gaps or are absent, training continues (NVML: %s)", error)
            return None


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """State of a GPU by NVML; None for values that this GPU or driver does not provide.

    index: NVML's index, as nvidia-smi uses it. clock_reasons: bits of nvmlClocksEventReasons. others: pid, name
    and MiB of each other process that computes on the GPU; None for a board in MIG mode, which lists the processes of
    all slices.
    """

    index: int
    name: str
    clock_reasons: int | None = None
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

    in_slices = supported(lambda: bool(nvml.nvmlDeviceGetMigMode(device)[0]))
    return GpuState(
        index=nvml.nvmlDeviceGetIndex(device),
        name=nvml.nvmlDeviceGetName(device),
        clock_reasons=supported(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(device))),
        others=None if in_slices else supported(lambda: _others(nvml, device)),
    )


def _others(nvml: Any, device: Any) -> tuple[tuple[int, str, int], ...]:
    """Other processes on the GPU. In a container NVML may list this process under a pid of the host, which is unknown
    here; one unknown pid then counts as the pid of this process."""
    this = psutil.Process()
    ours = {this.pid, *(child.pid for child in this.children(recursive=True))}
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    running = {process.pid: (process.usedGpuMemory or 0) >> 20 for process in processes}
    named = psutil.process_iter(["name"])  # without processes that end meanwhile
    names = {process.pid: process.info["name"] or "unknown" for process in named if process.pid in running}
    unknown = [pid for pid in running if pid not in names]
    hidden = set(unknown[:1]) if not ours & set(running) else set()
    others = [pid for pid in running if pid not in ours | hidden]
    return tuple((pid, names.get(pid, "in another container"), running[pid]) for pid in others)
