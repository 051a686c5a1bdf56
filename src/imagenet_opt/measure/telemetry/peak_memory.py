"""Peak memory of this process."""

from pathlib import Path

import torch

from imagenet_opt.machine import GIB


def peak_gib(device: torch.device) -> float:
    """Peak memory in GiB: on a GPU reserved by torch, with its cache and graphs; on a CPU resident in RAM."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / GIB
    lines = map(str.split, Path("/proc/self/status").read_text().splitlines())
    # getrusage's maximum would include earlier programs of this process
    return next((int(line[1]) for line in lines if line[:1] == ["VmHWM:"]), 0) * 1024 / GIB
