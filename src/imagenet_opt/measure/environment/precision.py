"""In which precision a step really computes, whatever was configured."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from imagenet_opt.measure.diagnosis import Finding

_ATEN = torch.ops.aten
_NAMES = {
    _ATEN.convolution: "convolution",
    _ATEN.convolution_backward: "convolution",
    _ATEN.mm: "matmul",
    _ATEN.addmm: "matmul",
    _ATEN.bmm: "matmul",
    _ATEN.baddbmm: "matmul",
}
_TF32_CAPABILITY = (8, 0)
"""TF32 came with Ampere."""


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
    """How many convolutions and matrix products of one step, backward included, ran in which dtype.

    Keys such as "convolution bfloat16" and "matmul float32". What torch.compile has fused is not seen: hand over a step
    of the network uncompiled.
    """
    recorder = _Recorder()
    with recorder:
        step()
    return recorder.dtypes


def convolutions_take_tf32() -> bool:
    """Whether float32 convolutions run in TF32 now, on a GPU that has it.

    torch has two switches and refuses to tell of the old one where the new one says something else for parts of cuDNN:
    PyTorch's CUDA semantics, TensorFloat-32 on Ampere (and later) devices.
    """
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return str(torch.backends.cudnn.conv.fp32_precision) == "tf32"  # type: ignore[attr-defined]


def check_precision(
    dtypes: Mapping[str, int], *, precision: str, capability: tuple[int, int] | None, conv_tf32: bool
) -> Finding:
    """Fires where convolutions run in float32 without TF32 on a GPU that has tensor cores for better.

    dtypes: of `precision_of_convolutions`. capability: torch.cuda.get_device_capability(); None on a CPU.
    conv_tf32: of `convolutions_take_tf32`, while the network trained; set_float32_matmul_precision does not reach
    convolutions. Source: PyTorch's CUDA semantics, TensorFloat-32 on Ampere (and later) devices.
    """
    rule = "float32_convolutions"
    if capability is None:
        return Finding(rule, None, "no CUDA GPU here", environment=True)
    total = sum(count for name, count in dtypes.items() if name.startswith("convolution "))
    if not total:
        return Finding(rule, None, "no convolution was seen in the step; a compiled one hides them", environment=True)
    slow = dtypes.get("convolution float32", 0)
    seen = ", ".join(f"{count} {name}" for name, count in sorted(dtypes.items()))
    evidence = f"in one step, trainer.precision={precision}: {seen}"
    if not slow:
        return Finding(rule, False, evidence, environment=True)
    ampere = capability >= _TF32_CAPABILITY
    if ampere and conv_tf32:
        return Finding(rule, False, f"{evidence}; float32 convolutions run in TF32", environment=True)
    return Finding(
        rule,
        True,
        f"{evidence}; {slow} of {total} convolutions without tensor cores"
        + (
            ", for cudnn.allow_tf32 is off (set_float32_matmul_precision does not reach convolutions)" if ampere else ""
        ),
        remedy="compute in 16 bits" + (", or in TF32" if ampere else ""),
        overrides=("trainer.precision=mixed", *(("callbacks.acceleration.tf32=true",) if ampere else ())),
        environment=True,
    )
