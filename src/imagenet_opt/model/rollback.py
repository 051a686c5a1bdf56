"""Saves the state that a forward pass changes as a side effect, so that a step can be undone."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from imagenet_opt.private_api import copy_all


class Rollback:
    """`buffers` (mainly batch-norm statistics) and the random state at the last `take`.

    Taking costs no host sync: copies are made on the device into reused memory, with one kernel per dtype.
    """

    def __init__(self, buffers: Iterable[Tensor]) -> None:
        groups = defaultdict(list)
        for buffer in buffers:
            groups[buffer.dtype].append(buffer)
        self._buffers = list(groups.values())
        self._kept = [[buffer.clone() for buffer in group] for group in self._buffers]
        self.take()

    def take(self) -> None:
        _copy(self._buffers, self._kept)
        self._random = random_state()

    def restore(self) -> None:
        _copy(self._kept, self._buffers)
        set_random_state(self._random)


def random_state() -> dict[str, Tensor | None]:
    """Random state of the CPU, and of this process's GPU if CUDA is used; suitable for a checkpoint."""
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None}


def set_random_state(state: Mapping[str, Tensor | None], devices: Iterable[str] = ("cpu", "cuda")) -> None:
    """Restore the random state of `devices`; of a GPU only if `state` has one and CUDA is used."""
    if "cpu" in devices and (cpu := state["cpu"]) is not None:
        torch.set_rng_state(cpu.cpu())
    if "cuda" in devices and (cuda := state["cuda"]) is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(cuda.cpu())


def of_all_ranks(random: dict[str, Any]) -> list[dict[str, Any]]:
    """The random states of all processes, by rank. A collective call."""
    if not (dist.is_available() and dist.is_initialized()):
        return [random]
    states: list[dict[str, Any]] = [{}] * dist.get_world_size()
    dist.all_gather_object(states, random)
    return states


@torch.no_grad()
def _copy(source: list[list[Tensor]], target: list[list[Tensor]]) -> None:
    for new, old in zip(source, target, strict=True):
        copy_all(old, new)
