"""Peak memory of this process."""

import re

import torch

from imagenet_opt.machine import GIB


def peak_gib(device: torch.device) -> float:
    """Peak memory in GiB: on a GPU reserved by torch, with its cache and graphs; on a CPU resident in RAM."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / GIB
    with open("/proc/self/status", "rb", buffering=0) as status:  # getrusage's maximum includes earlier programs
        peak = re.search(rb"VmHWM:\s*(\d+)", status.read())
    return int(peak[1]) * 1024 / GIB if peak else 0.0
