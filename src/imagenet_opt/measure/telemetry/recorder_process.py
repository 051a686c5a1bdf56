"""The process that records a timeline while its parent trains; measure/telemetry/recorder.py starts it."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from imagenet_opt.measure.telemetry.gpu_history import GpuColumns
from imagenet_opt.measure.telemetry.proc_counters import Row, host_rows
from imagenet_opt.measure.telemetry.sampler import next_due
from imagenet_opt.measure.telemetry.shared_state import Gauges
from imagenet_opt.measure.telemetry.timeline import INTERVAL_SECONDS, ChunkWriter, Table

_GPU_SECONDS = 1.0  # the driver buffers longer, and reading the GPU takes longer than all other readings
_FLUSH_SECONDS = 10.0
_SHOWN = ("queue_depth", "step", "phase")


class Recorder:
    """Samples and writes until the parent sets the gauge `done` or dies. `run` raises OSError if it cannot write."""

    def __init__(self, gauges: Gauges, parent: int, writer: ChunkWriter, gpu: GpuColumns | None) -> None:
        self._gauges, self._parent, self._writer, self._gpu = gauges, parent, writer, gpu
        self._host = host_rows(parent)
        self._gpu_memory_gib = float("nan")
        self._rows: list[Row] = []

    def run(self) -> None:
        began = time.monotonic()
        gpu_at, flush_at = began, began + _FLUSH_SECONDS
        for now in _ticks(INTERVAL_SECONDS):
            over = bool(self._gauges["done"]) or os.getppid() != self._parent
            if self._gpu is not None and (over or now >= gpu_at):
                self._sample_gpu(self._gpu)
                gpu_at = now + _GPU_SECONDS
            self._sample()
            if over or now >= flush_at:
                self._writer.add("samples", _table(self._rows))
                self._rows.clear()
                self._writer.flush()
                flush_at = now + _FLUSH_SECONDS
            self._gauges["recorder_cpu_seconds"] = time.process_time()
            self._gauges["recorder_seconds"] = now - began
            if over:
                return

    def _sample(self) -> None:
        shown = {name: self._gauges[name] for name in _SHOWN}
        memory = {} if self._gpu is None else {"gpu_memory_used_gib": self._gpu_memory_gib}
        self._rows.append({"unix_seconds": time.time()} | next(self._host) | memory | shown)
        if events := self._gauges.drain_events():
            self._writer.add("events", events)

    def _sample_gpu(self, gpu: GpuColumns) -> None:
        self._gpu_memory_gib = gpu.memory_used_gib()
        for name, table in gpu.drain().items():
            self._writer.add(name, table)
        self._gauges["nvml_error"] = gpu.error


def _ticks(interval: float) -> Iterator[float]:
    """Times of `time.monotonic`, evenly spaced from now on; missed times are skipped."""
    due = time.monotonic()
    while True:
        time.sleep(max(0.0, due - time.monotonic()))
        now = time.monotonic()
        yield now
        due = next_due(due, time.monotonic(), interval)


def _table(rows: list[Row]) -> Table:
    return {
        name: np.array([row[name] for row in rows], np.float64 if name == "unix_seconds" else np.float32)
        for name in rows[0]
    }


def main(arguments: list[str]) -> None:
    """arguments: file descriptor of the gauges, pid of the parent, folder and, with a GPU, its names."""
    file, parent, folder, *gpu_names = arguments
    with ExitStack() as stack:
        gpu = stack.enter_context(GpuColumns(*gpu_names)) if gpu_names else None
        Recorder(Gauges(int(file)), int(parent), ChunkWriter(Path(folder)), gpu).run()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
