"""Fits the numbers of workers and prefetched batches to this machine."""

from dataclasses import dataclass

from imagenet_opt import machine
from imagenet_opt.data.options import Auto
from imagenet_opt.data.storage.read_pool import READ_AHEAD_BYTES
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
class LoaderBudget:
    """Workers and batches ahead of one loader, and the memory that decides.

    asked_workers, asked_prefetch: as requested, with "auto" resolved and at most one worker per usable CPU. needed:
    bytes that these need in all processes. allowed: bytes that they may use, of shared memory or of all memory,
    whichever is shorter (in_shared_memory). message: one line if the limits are lower than requested, else None.
    """

    num_workers: int
    prefetch_factor: int
    asked_workers: int
    asked_prefetch: int
    needed: int
    allowed: int
    in_shared_memory: bool
    message: str | None = None

    @property
    def is_cut(self) -> bool:
        """Whether memory allows less than was requested."""
        return (self.num_workers, self.prefetch_factor) != (self.asked_workers, self.asked_prefetch)

    @property
    def sufficient(self) -> int:
        """Bytes of memory that would allow what was requested."""
        return int(self.needed / _MEMORY_SHARE)


UNKNOWN = LoaderBudget(0, 0, 0, 0, 0, 0, in_shared_memory=False)
"""Of a run that an earlier version measured."""


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
    """Fit a loader to this machine, on which `processes` training processes have two loaders each.

    Batches are in shared memory, which is part of the memory. Files that are read ahead, the image in decoding and the
    order of the samples are in each worker's ordinary memory. batch_bytes: shared memory of one batch, see
    `slot_bytes`. order_bytes: see `TrainOrder.num_bytes`. sharing_cpus: processes that share the usable CPUs; None: all
    `processes`. cpus, memory, shared_memory (bytes): None for the values of this machine.
    """
    loaders = processes * _LOADERS
    memory = int(_MEMORY_SHARE * (machine.available_memory() if memory is None else memory))
    shared_memory = int(_MEMORY_SHARE * (machine.free_shared_memory() if shared_memory is None else shared_memory))
    worker_bytes = _WORKER_BYTES + order_bytes

    def needs(workers: int, prefetch: int) -> tuple[int, int]:
        """Bytes of shared memory, and of all memory."""
        batches = loaders * workers * (prefetch + SPARE_BATCHES) * batch_bytes
        return batches, batches + loaders * workers * worker_bytes

    def fits(workers: int, prefetch: int) -> bool:
        shared, whole = needs(workers, prefetch)
        return shared <= shared_memory and whole <= memory

    most = most_workers(processes=processes, sharing_cpus=sharing_cpus, cpus=cpus)
    wanted = most if num_workers == "auto" else num_workers, _PREFETCH if prefetch_factor == "auto" else prefetch_factor
    asked = min(wanted[0], most), wanted[1]
    workers, prefetch = asked
    while prefetch > 1 and workers and not fits(workers, prefetch):  # batches are reduced before workers
        prefetch -= 1
    while workers > 1 and not fits(workers, prefetch):
        workers -= 1
    message = (
        f"loader: {workers} worker{'s' if workers > 1 else ''} x {prefetch} batches ahead instead of "
        f"data.num_workers={wanted[0]} x data.prefetch_factor={wanted[1]}: this process has {most} "
        f"CPU{'s' if most > 1 else ''}, {memory / loaders / GIB:.1f} GiB of memory and "
        f"{shared_memory / loaders / GIB:.1f} GiB of /dev/shm for a loader; a worker takes {worker_bytes / _MIB:.0f} "
        f"MiB, and {SPARE_BATCHES} batches more than it prefetches, of {batch_bytes / _MIB:.0f} MiB each"
    )
    shared, whole = needs(*asked)
    in_shared = shared * memory > whole * shared_memory
    return LoaderBudget(
        workers,
        prefetch,
        *asked,
        needed=shared if in_shared else whole,
        allowed=shared_memory if in_shared else memory,
        in_shared_memory=in_shared,
        message=None if (workers, prefetch) == wanted else message,
    )
