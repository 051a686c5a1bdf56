"""Checks the precision in which a step really computes."""

from collections.abc import Mapping

from imagenet_opt.doctor.diagnosis import Finding

_TF32_CAPABILITY = (8, 0)
"""Ampere, the first GPUs with TF32."""


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
        return Finding(rule, None, "no CUDA GPU here")
    total = sum(count for name, count in dtypes.items() if name.startswith("convolution "))
    if not total:
        return Finding(rule, None, "no convolution was recorded in the step; a compiled step hides them")
    slow = dtypes.get("convolution float32", 0)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(dtypes.items()))
    evidence = f"in one step, trainer.precision={precision}: {counts}"
    if not slow:
        return Finding(rule, False, evidence)
    ampere = capability >= _TF32_CAPABILITY
    if ampere and conv_tf32:
        return Finding(rule, False, f"{evidence}; float32 convolutions run in TF32")
    return Finding(
        rule,
        True,
        f"{evidence}; {slow} of {total} convolutions without tensor cores"
        + (
            ", because cudnn.allow_tf32 is off (set_float32_matmul_precision does not reach convolutions)"
            if ampere
            else ""
        ),
        remedy="compute in 16 bits" + (", or in TF32" if ampere else ""),
        overrides=("trainer.precision=mixed", *(("callbacks.acceleration.tf32=true",) if ampere else ())),
    )
