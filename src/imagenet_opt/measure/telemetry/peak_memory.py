"""Peak memory of this process."""

import resource
from pathlib import Path

import torch

from imagenet_opt.machine import GIB

_STATUS = Path("/proc/self/status")


def peak_gib(device: torch.device) -> float:
    """Peak memory in GiB: on a GPU reserved by torch, with its cache and graphs; on a CPU resident in RAM."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / GIB
    peaks = (int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    fallback = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # includes earlier programs of this process
    return next(peaks, fallback) * 1024 / GIB
