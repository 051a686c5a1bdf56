"""A training machine as a few formulas: its rates in each experiment of the doctor, and its rate in training.

The formulas share one idea with the doctor: a run is as fast as its slowest stage. So they show whether the rules draw
the right conclusion from right measurements, not whether the measurements are right.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

GIB = 2**30
HYPER_THREAD = 0.2  # what the second thread of a core adds
_SYNCHRONOUS = 0.001  # below this latency a worker has one request in flight
_TAIL = 0.95  # a loader that waits for storage reaches this share of the raw reads: batches wait for their last file
_ROUNDS = 30  # of the fixed point below


@dataclass(frozen=True, kw_only=True)
class Machine:
    """vcpus, cores: of the job; installed: CPUs of the machine (0: as many). decode_ms, packed_ms, file_ms: CPU time of
    an image, of a packed one, and of opening its file. latency, mb_per_second, requests_per_second: of the storage.
    stall, stall_every: seconds of its pauses, and between them. first_touch: seconds of the first read of a file.
    cached: share of the data in memory, or of a URL in the local cache, which can keep `room`. refused: share of the
    requests. gpu: images/s of its kernels; launch: CPU seconds that launch a step; gpu_share: left by other processes;
    rated: images/s of a healthy GPU. workers, reads: as configured, 0: auto. neighbour: busy threads of others. quota:
    CPUs that a cgroup grants although the job does not see it. callback, logging, checkpoint, hidden: seconds of the
    main process in each step, the last of which no experiment sees. syncs: waits for the GPU in a step."""

    vcpus: int = 4
    cores: float = 2
    installed: int = 0
    decode_ms: float = 4.5
    packed_ms: float = 3.2
    file_ms: float = 0.06
    image_mb: float = 0.11
    latency: float = 0.0005
    mb_per_second: float = 1000.0
    requests_per_second: float = math.inf
    stall: float = 0.0
    stall_every: float = 1.0
    first_touch: float = 0.0
    cached: float = 0.0
    is_url: bool = False
    room: float = 1.0
    refused: float = 0.0
    memory_gib: float = 16.0
    shm_gib: float = 8.0
    num_images: int = 1_281_167
    gpu: float = 900.0
    gpu_share: float = 1.0
    rated: float = 0.0
    launch: float = 0.012
    batch: int = 256
    copy_gb_per_second: float = 20.0
    crop_mb: float = 0.35
    workers: int = 0
    prefetch: int = 4
    reads: int = 0
    neighbour: float = 0.0
    quota: float = math.inf
    callback: float = 0.0
    logging: float = 0.0
    checkpoint: float = 0.0
    hidden: float = 0.0
    syncs: float = 0.0
    packed: bool = False
    keeps_files: bool = True

    @property
    def num_workers(self) -> int:
        return self.workers or self.vcpus

    @property
    def kernel_seconds(self) -> float:
        return self.batch / (self.gpu * self.gpu_share)

    @property
    def copy_rate(self) -> float:
        return 1000 * self.copy_gb_per_second / self.crop_mb

    @property
    def data_bytes(self) -> float:
        return self.image_mb * 1e6 * self.num_images

    # CPUs

    def capacity(self, threads: float) -> float:
        """Cores' worth of work of so many busy threads."""
        busy = min(threads, self.vcpus)
        return min(self.quota, min(busy, self.cores) + HYPER_THREAD * max(0.0, busy - self.cores))

    def decode_rate(self, workers: int, *, beside: float = 0.0, opening: bool = False) -> float:
        """beside: busy threads of the training process."""
        threads = workers + self.neighbour + beside
        seconds = (self.decode_ms + opening * self.file_ms) / 1000
        return self.capacity(threads) * workers / threads / seconds

    def main_slowdown(self, busy_share: float) -> float:
        """Of the training process beside workers that are busy this share of the time."""
        threads = self.num_workers * busy_share + self.neighbour + 1
        return threads / self.capacity(threads)

    # Reads

    @property
    def reads_per_worker(self) -> int:
        if self.latency < _SYNCHRONOUS:
            return 1
        pace = self.num_workers / self.decode_rate(self.num_workers)
        useful = 2 * min(self.mb_per_second / self.image_mb, self.requests_per_second) * self.latency
        wanted = max(4, min(math.ceil(1.5 * self.latency / pace), 512))
        return self.reads or int(min(wanted, max(32.0, useful / self.num_workers)))

    def read_rate(self, depth: float) -> float:
        """Of the storage, with so many requests in flight."""
        rate = min(depth / self.latency, self.mb_per_second / self.image_mb, self.requests_per_second)
        return rate * self.stall_every / (self.stall_every + self.stall)

    # The loader and the run

    def loader_rate(self, hits: float | None) -> float:
        """hits: share of the samples in memory; None: all are read from memory."""
        workers = self.num_workers
        decode = self.decode_rate(workers, opening=True)
        if hits is None or hits >= 1:
            return decode
        reads = self.read_rate(workers * self.reads_per_worker) / (1 - hits)
        if self.latency >= _SYNCHRONOUS or self.reads:
            rate = min(decode, reads)
        else:
            rate = min(workers / (workers / decode + (1 - hits) * self.latency), reads)
        return rate * (_TAIL if reads < 3 * decode else 1.0)

    def beside_rate(self) -> float:
        """Of the device while the loader makes a batch for each step."""
        rate = self.batch / max(self.kernel_seconds, self.launch)
        for _ in range(_ROUNDS):
            slowdown = self.main_slowdown(self._busy(rate))
            rate = 0.5 * rate + 0.5 * self.batch / max(self.kernel_seconds, self.launch * slowdown)
        return rate

    def run_rate(self, hits: float | None) -> float:
        rate = min(self.loader_rate(hits), self.batch / self.kernel_seconds)
        host = self.launch + self.callback + self.logging + self.checkpoint + self.hidden
        for _ in range(_ROUNDS):
            slow_host = host * self.main_slowdown(self._busy(rate))
            beside = min(1.0, host * rate / self.batch)
            supply = min(self.decode_rate(self.num_workers, beside=beside, opening=True), self.loader_rate(hits))
            step = self.kernel_seconds + slow_host if self.syncs else max(self.kernel_seconds, slow_host)
            step += 0.0 if hits is None else self._pause_seconds(supply)
            rate = 0.5 * rate + 0.5 * min(supply, self.batch / step, self.copy_rate)
        return rate

    def _busy(self, rate: float) -> float:
        return min(1.0, rate / self.decode_rate(self.num_workers, opening=True))

    def _pause_seconds(self, supply: float) -> float:
        """Of a step, in which no batch is ready although the loader is fast enough on average."""
        ahead = self.num_workers * self.prefetch * self.batch / (self.gpu * self.gpu_share)
        steps = self.stall_every / self.kernel_seconds
        return max(0.0, self.stall - ahead) / steps if supply > self.gpu * self.gpu_share else 0.0

    # Epochs

    @property
    def keeps_all(self) -> bool:
        return self.room >= 1 if self.is_url else self.keeps_files and self.memory_gib * GIB >= self.data_bytes

    def hits(self, share: float) -> float:
        """Share of an epoch's reads that finds its sample, if this share of the data was there when it began. A page
        cache that is too small drops pages before they are read: least recently used first, each page read once."""
        if self.is_url or self.keeps_all or not 0 < share < 1:
            return share
        return share + (1 - share) * math.log(1 - share)

    @cache  # noqa: B019  # machines are few
    def epochs(self) -> tuple[float, float]:
        """Rates of the first epoch and of later ones."""
        first, later = self.run_rate(self.hits(self.cached)), self.run_rate(self.hits(self.cached))
        if self.first_touch:
            first = min(first, 32 * self.num_workers / self.first_touch / max(1e-9, 1 - self.cached))
        if self.is_url:
            later = self.run_rate(self.room)
        elif self.keeps_all:
            later = self.run_rate(None)
        return first, later


def relaxed(machine: Machine) -> dict[str, Machine]:
    """The machine without each of its limits."""
    whole = machine.installed or machine.vcpus

    def but(**changes: float) -> Machine:
        return replace(machine, **changes)  # type: ignore[arg-type]

    half = {"decode_ms": machine.decode_ms / 2, "file_ms": machine.file_ms / 2, "launch": 0.8 * machine.launch}
    return {
        "latency": but(latency=machine.latency / 4),
        "bandwidth": but(mb_per_second=4 * machine.mb_per_second, requests_per_second=4 * machine.requests_per_second),
        "requests": but(reads=4 * machine.reads),
        "stalls": but(stall=0.0),
        "first touch": but(first_touch=0.0),
        "cache": but(room=1.0),
        "CPUs": but(**half, quota=2 * machine.quota),
        "more CPUs": but(vcpus=whole, cores=max(machine.cores, whole / 2)),
        "workers": but(workers=max(machine.workers, machine.vcpus) if machine.workers else 0),
        "prefetch": but(prefetch=8 * machine.prefetch),
        "neighbour": but(neighbour=0.0),
        "GPU": but(gpu=max(machine.gpu, machine.rated)),
        "GPU sharing": but(gpu_share=1.0),
        "launches": but(launch=machine.launch / 4),
        "copy": but(copy_gb_per_second=4 * machine.copy_gb_per_second),
        "main process": but(callback=0.0, logging=0.0, checkpoint=0.0),
        "syncs": but(syncs=0.0),
        "hidden": but(hidden=0.0),
    }
