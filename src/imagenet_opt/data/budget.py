"""How many workers and batches in flight this machine can hold."""

from dataclasses import dataclass

from imagenet_opt import machine
from imagenet_opt.machine import GIB

_MEMORY_SHARE = 0.5
"""Of RAM and of /dev/shm that batches in flight may take; the rest is for the page cache and the processes."""

_PREFETCH = 4
SPARE_BATCHES = 3
"""Batches of a worker beside those ahead: being made, on the way to the device, and in use."""


@dataclass(frozen=True)
class LoaderBudget:
    """What the loader may use; `message` is one line when that is less than what was asked for, else None."""

    num_workers: int
    prefetch_factor: int
    message: str | None


def fit_loader(
    *,
    num_workers: int | None,
    prefetch_factor: int | None,
    batch_bytes: int,
    processes: int = 1,
    cpus: int | None = None,
    memory: int | None = None,
) -> LoaderBudget:
    """Fit the loader of each of `processes` training processes on this machine to its CPUs and memory.

    num_workers: None asks for one a usable CPU; prefetch_factor: None for 4.
    batch_bytes: one batch as a worker hands it over.
    cpus, memory (bytes): None means as found on this machine.
    """
    ahead = _PREFETCH if prefetch_factor is None else prefetch_factor
    cpus = machine.usable_cpus() if cpus is None else cpus
    memory = min(machine.available_memory(), machine.free_shared_memory()) if memory is None else memory
    most_workers = max(1, cpus // processes)
    workers = most_workers if num_workers is None else min(num_workers, most_workers)
    room = int(memory * _MEMORY_SHARE) // processes
    prefetch = min(ahead, max(1, room // max(1, workers * batch_bytes) - SPARE_BATCHES))
    while workers > 1 and workers * (prefetch + SPARE_BATCHES) * batch_bytes > room:
        workers -= 1
    asked = most_workers if num_workers is None else num_workers
    if (asked, ahead) == (workers, prefetch) or workers == 0:
        return LoaderBudget(workers, prefetch, None)
    return LoaderBudget(
        workers,
        prefetch,
        f"loader: {workers} workers x {prefetch} batches ahead instead of data.num_workers={asked} x "
        f"data.prefetch_factor={ahead}: {cpus} usable CPUs for {processes} process(es), and "
        f"{asked * (ahead + SPARE_BATCHES) * batch_bytes / GIB:.1f} GiB of batches against {room / GIB:.1f} GiB",
    )
