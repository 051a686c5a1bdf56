"""How many workers and batches in flight this machine can hold."""

from dataclasses import dataclass

from imagenet_opt import machine
from imagenet_opt.data.options import Auto
from imagenet_opt.data.storage.reader import READ_AHEAD_BYTES
from imagenet_opt.machine import GIB

_MIB = 2**20
_MEMORY_SHARE = 0.5
"""Of RAM and of /dev/shm that batches in flight may take; the rest is for the page cache and the processes."""
_LOADERS = 2
"""Of a training process: training's workers keep their memory while validation's work."""
_PREFETCH = 4
_DECODE_BYTES = 80 * 2**20
"""Peak memory of decoding one image of 4 Mi pixels (the default of data.max_crop_pixels) whole.

Measured with Pillow 13: 76 MiB for WebP, 40 to 56 MiB for PNG.
"""
_WORKER_BYTES = READ_AHEAD_BYTES + _DECODE_BYTES
SPARE_BATCHES = 3
"""Batches of a worker beside those ahead: being made, on the way to the device, and in use."""


@dataclass(frozen=True)
class LoaderBudget:
    """What one loader may use; `message` is one line when that is less than what was asked for, else None."""

    num_workers: int
    prefetch_factor: int
    message: str | None


def fit_loader(
    *,
    num_workers: int | Auto,
    prefetch_factor: int | Auto,
    batch_bytes: int,
    processes: int = 1,
    sharing_cpus: int | None = None,
    cpus: int | None = None,
    memory: int | None = None,
    shared_memory: int | None = None,
) -> LoaderBudget:
    """Fit one of the two loaders of each of `processes` training processes on this machine to its CPUs and memory.

    Batches lie in shared memory, which is part of the memory. Files read ahead and the image that is being decoded lie
    in the memory alone.

    num_workers: "auto" asks for one a usable CPU; prefetch_factor: "auto" for 4.
    batch_bytes: shared memory of one batch, see slots.slot_bytes.
    sharing_cpus: processes that share the usable CPUs; None for all.
    cpus, memory, shared_memory (bytes): None means as found on this machine.
    """
    cpus = machine.usable_cpus() if cpus is None else cpus
    memory = machine.available_memory() if memory is None else memory
    shared_memory = machine.free_shared_memory() if shared_memory is None else shared_memory
    room, shared_room = (int(size * _MEMORY_SHARE) // (processes * _LOADERS) for size in (memory, shared_memory))

    def short(workers: int, prefetch: int) -> str:
        """What there is not enough of; empty where all fits."""
        batches = workers * (prefetch + SPARE_BATCHES) * batch_bytes
        size = f"{batch_bytes / _MIB:.0f} MiB a batch ({SPARE_BATCHES} a worker more than ahead)"
        if batches > shared_room:
            return f"{shared_room / GIB:.1f} GiB of /dev/shm to use, at {size}"
        if batches + workers * _WORKER_BYTES > room:
            other = f"{_WORKER_BYTES / _MIB:.0f} MiB a worker for reading ahead and decoding"
            return f"{room / GIB:.1f} GiB of memory to use, at {size} and {other}"
        return ""

    most_workers = max(1, cpus // (sharing_cpus or processes))
    asked = (
        most_workers if num_workers == "auto" else num_workers,
        _PREFETCH if prefetch_factor == "auto" else prefetch_factor,
    )
    workers, prefetch = min(asked[0], most_workers), asked[1]
    too_few_cpus = f"{most_workers} usable CPU{'s' * (most_workers > 1)} a process" if workers < asked[0] else ""
    too_little_room = short(workers, prefetch)
    while prefetch > 1 and workers and short(workers, prefetch):
        prefetch -= 1
    while workers > 1 and short(workers, prefetch):
        workers -= 1
    if asked == (workers, prefetch):
        return LoaderBudget(workers, prefetch, None)
    return LoaderBudget(
        workers,
        prefetch,
        f"loader: {workers} worker{'s' * (workers > 1)} x {prefetch} batches ahead instead of "
        f"data.num_workers={asked[0]} x data.prefetch_factor={asked[1]}: "
        + " and ".join(filter(None, (too_few_cpus, too_little_room))),
    )
