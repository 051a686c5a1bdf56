"""The number formats in which convolutions and matrix products run."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_NAMES = {
    _ATEN.convolution: "convolution",
    _ATEN.convolution_backward: "convolution",
    _ATEN.mm: "matmul",
    _ATEN.addmm: "matmul",
    _ATEN.bmm: "matmul",
    _ATEN.baddbmm: "matmul",
}


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.dtypes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := _NAMES.get(func.overloadpacket)) is not None:
            tensor = next(arg for arg in args if isinstance(arg, Tensor))
            self.dtypes[f"{name} {str(tensor.dtype).removeprefix('torch.')}"] += 1
        return func(*args, **(kwargs or {}))


def precision_of_convolutions(step: Callable[[], None]) -> Counter[str]:
    """Number of convolutions and matrix products in one step, backward included, by dtype.

    Keys such as "convolution bfloat16" and "matmul float32". step: without torch.compile, since fused operations are
    not counted.
    """
    recorder = _Recorder()
    with recorder:
        step()
    return recorder.dtypes


def convolutions_take_tf32() -> bool:
    """Whether float32 convolutions run in TF32 now, on a GPU that has TF32.

    torch has two switches, and raises an error for the old switch if the new switch differs between parts of cuDNN.
    Source: PyTorch's CUDA semantics, TensorFloat-32 on Ampere (and later) devices.
    """
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return str(torch.backends.cudnn.conv.fp32_precision) == "tf32"  # type: ignore[attr-defined]
