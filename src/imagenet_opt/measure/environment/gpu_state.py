"""What NVML says of one GPU at a moment, as plain values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from imagenet_opt.measure.gpu import device_names, find_device

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """What NVML says of one GPU; None where this GPU or driver does not say it.

    index: NVML's, which nvidia-smi takes. clock_reasons: bits of nvmlClocksEventReasons. others: pid, name and MiB of
    each other process that computes on it. link, most_link: PCIe generation and lanes, now and at most; the generation
    falls while the GPU is idle. compute_mode: nvmlComputeMode_t.
    """

    index: int
    name: str
    clock_reasons: int | None = None
    persistent: bool | None = None
    others: tuple[tuple[int, str, int], ...] | None = None
    link: tuple[int, int] | None = None
    most_link: tuple[int, int] | None = None
    compute_mode: int | None = None


def read_gpu(cuda_index: int) -> GpuState | None:
    """The state now; worth most while the GPU computes. None without NVML."""
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
    def told(value: Callable[[], T]) -> T | None:
        try:
            return value()
        except nvml.NVMLError:
            return None

    generation, lanes = nvml.nvmlDeviceGetCurrPcieLinkGeneration, nvml.nvmlDeviceGetCurrPcieLinkWidth
    most_generation, most_lanes = nvml.nvmlDeviceGetMaxPcieLinkGeneration, nvml.nvmlDeviceGetMaxPcieLinkWidth
    return GpuState(
        index=nvml.nvmlDeviceGetIndex(device),
        name=nvml.nvmlDeviceGetName(device),
        clock_reasons=told(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(device))),
        persistent=told(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(device))),
        others=told(lambda: _others(nvml, device)),
        link=told(lambda: (generation(device), lanes(device))),
        most_link=told(lambda: (most_generation(device), most_lanes(device))),
        compute_mode=told(lambda: int(nvml.nvmlDeviceGetComputeMode(device))),
    )


def _others(nvml: Any, device: Any) -> tuple[tuple[int, str, int], ...]:
    """In a container NVML may list our own process by the host's number, which none here has: one such is left out."""
    this = psutil.Process()
    ours = {this.pid, *(child.pid for child in this.children(recursive=True))}
    running = {
        process.pid: (process.usedGpuMemory or 0) >> 20 for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)
    }
    names = {process.pid: process.name() for process in psutil.process_iter() if process.pid in running}
    unseen = [pid for pid in running if pid not in names]
    hidden = set(unseen[:1]) if not ours & set(running) else set()
    others = [pid for pid in running if pid not in ours | hidden]
    return tuple((pid, names.get(pid, "in another container"), running[pid]) for pid in others)
