"""A copy of a checkpoint's state in host memory, which further training does not change."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor


class HostCopy:
    """A copy of `state` made of dicts, lists, tuples, numbers, strings, None, and tensors on the CPU.

    Tensors that share memory in `state` share memory in the copy. GPU tensors are copied asynchronously in the current
    stream, so before the next step changes them; `wait` waits for these copies.
    num_bytes: total size of the tensors. foreign: paths of objects of other types, which are deep-copied; a file with
    such objects cannot be opened with `weights_only`.
    """

    def __init__(self, state: Mapping[Any, Any]) -> None:
        self.num_bytes = 0
        self.foreign: list[str] = []
        self._copies: dict[Any, Tensor] = {}
        self._copied: torch.cuda.Event | None = None
        self.state: dict[Any, Any] = self._plain(state, "")
        self._copies.clear()
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> None:
        """Wait until the copies are complete."""
        if self._copied is not None:
            self._copied.synchronize()

    def _plain(self, value: Any, place: str) -> Any:
        if isinstance(value, Tensor):
            return self._copy(value)
        if isinstance(value, Mapping):
            return {key: self._plain(part, f"{place}/{key}") for key, part in value.items()}
        if isinstance(value, list | tuple):
            parts = [self._plain(part, f"{place}/{i}") for i, part in enumerate(value)]
            return parts if isinstance(value, list) else tuple(parts)
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool):
            return value
        for kind in (int, float, str):
            if isinstance(value, kind):
                return kind(value)
        self.foreign.append(f"{place} ({type(value).__name__})")
        return deepcopy(value)

    def _copy(self, tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.device
        key = (*place, tensor.shape, tensor.stride(), tensor.dtype)
        if key not in self._copies:
            self.num_bytes += tensor.numel() * tensor.element_size()
            if pinned := tensor.device.type == "cuda":
                self._copied = self._copied or torch.cuda.Event()
            copy = torch.empty_like(tensor, device="cpu", pin_memory=pinned, requires_grad=False)
            self._copies[key] = copy.copy_(tensor.detach(), non_blocking=pinned)
        return self._copies[key]
