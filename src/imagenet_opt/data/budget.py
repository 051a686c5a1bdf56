"""Fits the numbers of workers and prefetched batches to this machine."""

from dataclasses import dataclass

from imagenet_opt import machine
from imagenet_opt.data.options import Auto
from imagenet_opt.data.storage.read_ahead import READ_AHEAD_BYTES
from imagenet_opt.machine import GIB

_MIB = 2**20
_MEMORY_SHARE = 0.5
"""Share of RAM and of /dev/shm for batches in flight; the rest is for the page cache and the processes."""
_LOADERS = 2
"""Loaders of a training process: the training workers keep their memory during validation."""
_PREFETCH = 4
_DECODE_BYTES = 80 * 2**20
"""Peak memory of decoding a whole image of 4 Mi pixels, the default of data.max_crop_pixels. Measured with Pillow 13:
76 MiB for WebP, 40 to 56 MiB for PNG."""
_WORKER_BYTES = READ_AHEAD_BYTES + _DECODE_BYTES
SPARE_BATCHES = 3
"""Batches of a worker beside the prefetched batches: one in the making, one on its way to the device, one in use."""


@dataclass(frozen=True)
class _Room:
    """Bytes of a batch, ordinary memory of a worker, and bytes of memory and of /dev/shm that one loader may use."""

    batch: int
    worker: int
    memory: int
    shared: int

    def short(self, workers: int, prefetch: int) -> str:
        """The insufficient resource; empty if everything fits."""
        batches = workers * (prefetch + SPARE_BATCHES) * self.batch
        size = f"{self.batch / _MIB:.0f} MiB a batch (a worker needs {SPARE_BATCHES} more than it prefetches)"
        if batches > self.shared:
            return f"{self.shared / GIB:.1f} GiB of usable /dev/shm, with {size}"
        if batches + workers * self.worker > self.memory:
            other = f"{self.worker / _MIB:.0f} MiB a worker for reading ahead, decoding and the order of the samples"
            return f"{self.memory / GIB:.1f} GiB of usable memory, with {size} and {other}"
        return ""

    def fit(self, workers: int, prefetch: int) -> tuple[int, int]:
        """Most workers and prefetched batches that fit; batches are reduced before workers."""
        while prefetch > 1 and workers and self.short(workers, prefetch):
            prefetch -= 1
        while workers > 1 and self.short(workers, prefetch):
            workers -= 1
        return workers, prefetch


@dataclass(frozen=True)
class LoaderBudget:
    """Limits of one loader. message: one line if the limits are lower than requested, else None."""

    num_workers: int
    prefetch_factor: int
    message: str | None


def most_workers(*, processes: int = 1, sharing_cpus: int | None = None, cpus: int | None = None) -> int:
    """Most workers of a loader: one per usable CPU of its process. See fit_loader."""
    cpus = machine.usable_cpus() if cpus is None else cpus
    return max(1, cpus // (sharing_cpus or processes))


def fit_loader(
    *,
    num_workers: int | Auto,
    prefetch_factor: int | Auto,
    batch_bytes: int,
    order_bytes: int = 0,
    processes: int = 1,
    sharing_cpus: int | None = None,
    cpus: int | None = None,
    memory: int | None = None,
    shared_memory: int | None = None,
) -> LoaderBudget:
    """Fit a loader to the CPUs and the memory of this machine, on which `processes` training processes have two loaders
    each.

    Batches are in shared memory, which is part of the memory. Files that are read ahead, the image in decoding and the
    order of the samples are in each worker's ordinary memory. num_workers: "auto" requests one per usable CPU.
    prefetch_factor: "auto" requests 4. batch_bytes: shared memory of one batch, see `slot_bytes`. order_bytes: see
    `TrainOrder.num_bytes`. sharing_cpus: processes that share the usable CPUs; None: all `processes`. cpus, memory,
    shared_memory (bytes): None for the values of this machine.
    """
    memory = machine.available_memory() if memory is None else memory
    shared_memory = machine.free_shared_memory() if shared_memory is None else shared_memory
    share = _MEMORY_SHARE / (processes * _LOADERS)
    room = _Room(batch_bytes, _WORKER_BYTES + order_bytes, int(memory * share), int(shared_memory * share))
    most = most_workers(processes=processes, sharing_cpus=sharing_cpus, cpus=cpus)
    if num_workers == "auto":
        num_workers = most
    if prefetch_factor == "auto":
        prefetch_factor = _PREFETCH
    workers = min(num_workers, most)
    too_few_cpus = f"{most} usable CPU{'s' * (most > 1)} a process" if workers < num_workers else ""
    reasons = filter(None, (too_few_cpus, room.short(workers, prefetch_factor)))
    workers, prefetch = room.fit(workers, prefetch_factor)
    message = (
        f"loader: {workers} worker{'s' * (workers > 1)} x {prefetch} batches ahead instead of "
        f"data.num_workers={num_workers} x data.prefetch_factor={prefetch_factor}: {' and '.join(reasons)}"
    )
    return LoaderBudget(workers, prefetch, None if (workers, prefetch) == (num_workers, prefetch_factor) else message)
