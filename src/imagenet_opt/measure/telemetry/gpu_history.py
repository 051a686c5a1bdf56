"""What the driver has noted of a GPU by itself, as columns of a timeline."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any

import numpy as np

from imagenet_opt.machine import GIB
from imagenet_opt.measure.telemetry.gpu import find_device
from imagenet_opt.measure.telemetry.timeline import Table


class GpuColumns(AbstractContextManager["GpuColumns"]):
    """One device, by its UUID and PCI bus id as torch has them; NVML is open within `with`.

    Raises nothing: what NVML refuses is left out, and `error` is its last one, as a number; 0 for none. A container
    without the driver's library has no columns, nor has a driver that refuses to begin; what it refuses later is asked
    for again.
    Source: nvmlDeviceGetSamples in NVIDIA's NVML API reference: times in microseconds of the host's clock, power in mW.
    """

    def __init__(self, uuid: str, bus_id: str) -> None:
        self._names = uuid, bus_id
        self._last_seen = {"gpu_utilization": 0, "gpu_power": 0}
        self._device: Any = None
        self.error = 0

    def __enter__(self) -> "GpuColumns":
        import pynvml

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._device = find_device(pynvml, *self._names)
        except pynvml.NVMLError as error:
            self.error = error.value
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(self._nvml.NVMLError):  # it may never have been opened
            self._nvml.nvmlShutdown()

    def drain(self) -> dict[str, Table]:
        """All that the driver has sampled since the last call: tables of a timeline, without those that are empty."""
        if self._device is None:
            return {}
        nvml = self._nvml
        tables = {
            "gpu_utilization": self._samples("gpu_utilization", nvml.NVML_GPU_UTILIZATION_SAMPLES, "percent", 1),
            "gpu_power": self._samples("gpu_power", nvml.NVML_TOTAL_POWER_SAMPLES, "watts", 1000),
        }
        return {name: table for name, table in tables.items() if table}

    def memory_used_gib(self) -> float:
        if self._device is None:
            return float("nan")
        return float(self._supported(lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._device).used / GIB, float("nan")))

    def _samples(self, table: str, kind: int, unit: str, divisor: float) -> Table:
        last_seen = self._last_seen[table]
        nothing: tuple[int, list[Any]] = (0, [])
        _, samples = self._supported(lambda: self._nvml.nvmlDeviceGetSamples(self._device, kind, last_seen), nothing)
        samples = [sample for sample in samples if sample.timeStamp > last_seen]
        if not samples:
            return {}
        self._last_seen[table] = max(sample.timeStamp for sample in samples)
        values = np.array([sample.sampleValue.uiVal for sample in samples], np.float32)
        times = np.array([sample.timeStamp for sample in samples], np.float64)
        return {"unix_seconds": times / 1e6, f"{table}_{unit}": values / np.float32(divisor)}

    def _supported(self, read: Callable[[], Any], otherwise: Any) -> Any:
        """NVML says Not Found where nothing is new, and Not Supported of MIG slices and some integrated GPUs."""
        try:
            return read()
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_NotFound):
            return otherwise
        except self._nvml.NVMLError as error:
            self.error = error.value
            return otherwise


def nvml_words(error: int) -> str:
    """What NVML calls an error."""
    import pynvml

    return f"NVML error {error}: {pynvml.NVMLError(error)}"
