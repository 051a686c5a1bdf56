"""Checks whether /dev/shm and RAM have room for the batches, and the page cache for the data set."""

from dataclasses import dataclass

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.remedies import DataPlace
from imagenet_opt.machine import GIB

_SPARE_BATCHES = 3
"""Batches of a worker in addition to the batches ahead: one being made, one being sent, one in use."""
_LOADERS = 2
"""Loaders of a process: the workers of training keep their batches while validation has its own workers."""
_SHARE = 0.5
"""Share of the free memory that batches may use."""


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Batches in memory. num_workers, prefetch_factor: as configured, with auto resolved, and at most one worker per
    usable CPU. fitted_workers, fitted_prefetch: after the loader's memory budget. batch_bytes: mean size of a batch
    that a worker sends."""

    num_workers: int
    fitted_workers: int
    prefetch_factor: int
    fitted_prefetch: int
    batch_bytes: float


def check_shared_memory(batches: Batches, *, free: int) -> Finding:
    """Check that batches fit in /dev/shm. free: its free bytes. Docker's default size is 64 MiB (docker run,
    --shm-size)."""
    remedy = "start the container with a larger --shm-size, or with --ipc=host; in Kubernetes mount an emptyDir with "
    remedy += "medium: Memory at /dev/shm"
    commands = ("docker run --shm-size={gib}g ...", "sudo mount -o remount,size={gib}G /dev/shm")
    return _check_room(batches, "small_shared_memory", "free in /dev/shm", free, remedy, commands)


def check_memory(batches: Batches, *, available: int) -> Finding:
    """Check that batches fit in memory, of which /dev/shm is a part. available: bytes that may be allocated."""
    remedy = "request more memory (sbatch --mem, docker run --memory), or use fewer workers or batches ahead"
    return _check_room(batches, "small_memory", "of available memory", available, remedy, ("sbatch --mem={gib}G ...",))


def _check_room(
    batches: Batches, rule: str, of_memory: str, free: int, remedy: str, commands: tuple[str, ...]
) -> Finding:
    workers, ahead = batches.num_workers, batches.prefetch_factor
    need = workers * (ahead + _SPARE_BATCHES) * _LOADERS * batches.batch_bytes
    evidence = f"{workers} workers x {ahead} batches ahead need up to {need / GIB:.2f} GiB"
    room = f"than {_SHARE:.0%} of the {free / GIB:.2f} GiB {of_memory}"
    if need <= _SHARE * free:
        return Finding(rule, False, f"{evidence}, not more {room}")
    evidence += f", more {room}; the loader uses {batches.fitted_workers} x {batches.fitted_prefetch}"
    overrides = (f"data.num_workers={batches.fitted_workers}", f"data.prefetch_factor={batches.fitted_prefetch}")
    gib = int(need / _SHARE / GIB) + 1
    return Finding(rule, True, evidence, remedy, overrides, tuple(command.format(gib=gib) for command in commands))


def check_page_cache(batches: Batches, data: DataPlace, *, data_bytes: int, available: int) -> Finding:
    """Check how much of the data memory can keep from one epoch to the next. data_bytes: size of the training set.

    The hit rate of a shuffled epoch is below that share: a page is often evicted before it is read again (with room for
    35 % of the data, 15 % were hits; Mohan et al., VLDB 2021).
    """
    num = batches.fitted_workers * (batches.fitted_prefetch + _SPARE_BATCHES)
    room = max(0.0, available - num * batches.batch_bytes)
    share = min(1.0, room / max(1, data_bytes))
    sizes = f"{data_bytes / GIB:.1f} GiB of training data, {room / GIB:.1f} GiB of memory to cache it"
    if share == 1:
        return Finding("page_cache", False, f"{sizes}: all of it stays in memory after one epoch")
    return Finding(
        "page_cache",
        True,
        f"{sizes}: {share:.0%} fits, so every epoch reads at least the rest from storage",
        "pack smaller images (about a sixth of ImageNet's size), onto a local disk if there is one; or use a machine "
        "with more memory",
        commands=(data.pack("max_side=256"),),
    )
