"""Samples that the driver records of a GPU, as columns of a timeline."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np

from imagenet_opt.machine import GIB
from imagenet_opt.measure.telemetry.gpu import find_device
from imagenet_opt.measure.telemetry.timeline import Table


class GpuColumns(AbstractContextManager["GpuColumns"]):
    """Samples of a device, given by its UUID and PCI bus id in torch's notation; NVML is open within `with`.

    Raises nothing: values that NVML denies are left out, and `error` is the number of the last NVML error, 0 for none.
    If NVML cannot be opened, as in a container without the driver's library, there are no columns; later errors do not
    stop further readings.
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

    def __exit__(self, *error: object) -> None:
        with suppress(self._nvml.NVMLError):  # NVML may not be open
            self._nvml.nvmlShutdown()

    def drain(self) -> dict[str, Table]:
        """The driver's samples since the last call, as the non-empty tables of a timeline."""
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
        """The value read, or `otherwise`: NVML raises Not Found if there are no new samples, and Not Supported for MIG
        slices and some integrated GPUs."""
        try:
            return read()
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_NotFound):
            return otherwise
        except self._nvml.NVMLError as error:
            self.error = error.value
            return otherwise


def nvml_words(error: int) -> str:
    """The text of an NVML error number."""
    import pynvml

    return f"NVML error {error}: {pynvml.NVMLError(error)}"
