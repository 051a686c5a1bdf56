"""Checks precision, sizes and memory format for tensor cores."""

from collections.abc import Iterable, Mapping

from imagenet_opt.doctor.diagnosis import Finding

_NO_GPU = "there is no CUDA GPU here"
_BYTES = 16
_PREFERRED_BYTES = 128
"""Sizes should be multiples of _BYTES, on an A100 rather of _PREFERRED_BYTES: 8 and 64 values of 16 bits, 4 and 32 of
TF32. Source: NVIDIA, Matrix Multiplication Background User's Guide, section Tensor Core Requirements."""
_TF32_CAPABILITY = (8, 0)
"""Ampere, the first GPUs with TF32."""


def check_multiples(
    *, has_gpu: bool, precision: str, batch_size: int, num_classes: int, channels: Iterable[int]
) -> Finding:
    """Check that the sizes are multiples that tensor cores need. channels: in and out of convolutions and linear
    layers, except the image's three."""
    rule = "tensor_core_multiples"
    if not has_gpu:
        return Finding(rule, None, _NO_GPU)
    if precision.startswith("64"):
        return Finding(rule, None, f"tensor cores are not used in trainer.precision={precision}")
    value_bytes = 4 if precision.startswith("32") else 2
    multiple, preferred = _BYTES // value_bytes, _PREFERRED_BYTES // value_bytes
    sizes = [("data.batch_size", batch_size), ("classes", num_classes)]
    sizes += [("channels", num) for num in sorted(set(channels))]
    off = [f"{name} {num}" for name, num in sizes if num % multiple]
    if not off:
        others = sorted({num for _, num in sizes if num % preferred})
        rest = f"; not of {preferred}, which are faster on an A100: {', '.join(map(str, others))}" if others else ""
        return Finding(rule, False, f"all sizes are multiples of {multiple}{rest}")
    needed = f"tensor cores need multiples of {multiple} in trainer.precision={precision}"
    return Finding(
        rule,
        True,
        f"{needed}; these sizes are not: {', '.join(off)}",
        "round the batch size, and the network's channels if you can choose them",
        overrides=(f"data.batch_size={-(-batch_size // multiple) * multiple}",) if batch_size % multiple else (),
    )


def check_channels_last(*, has_gpu: bool, precision: str, channels_last: bool) -> Finding:
    """Check the memory format: cuDNN's tensor-core convolutions take NHWC; NCHW data is converted each time.

    Source: NVIDIA, Convolutional Layers User's Guide, section Tensor Layouts In Memory.
    """
    rule = "channels_last"
    if not has_gpu:
        return Finding(rule, None, _NO_GPU)
    if channels_last or precision.startswith("64"):
        return Finding(rule, False, "images and weights are channels_last, or the precision does not need it")
    return Finding(
        rule,
        True,
        "images and weights are in NCHW order, which tensor cores do not accept: each convolution converts them",
        "keep images and weights in channels_last order",
        overrides=("callbacks.acceleration.channels_last=true",),
    )


def check_precision(
    dtypes: Mapping[str, int], *, precision: str, capability: tuple[int, int] | None, conv_tf32: bool
) -> Finding:
    """Fires if convolutions run in float32 without TF32 on a GPU with tensor cores.

    dtypes: of `precision_of_convolutions`. capability: torch.cuda.get_device_capability(); None on a CPU. conv_tf32: of
    `convolutions_take_tf32`, while the network trained; set_float32_matmul_precision does not affect convolutions.
    Source: PyTorch's CUDA semantics, TensorFloat-32 on Ampere (and later) devices.
    """
    rule = "float32_convolutions"
    if capability is None:
        return Finding(rule, None, _NO_GPU)
    total = sum(count for name, count in dtypes.items() if name.startswith("convolution "))
    if not total:
        return Finding(rule, None, "no convolution was recorded in the step; a compiled step hides them")
    num_float32 = dtypes.get("convolution float32", 0)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(dtypes.items()))
    evidence = f"in one step, trainer.precision={precision}: {counts}"
    if not num_float32:
        return Finding(rule, False, evidence)
    has_tf32 = capability >= _TF32_CAPABILITY
    if has_tf32 and conv_tf32:
        return Finding(rule, False, f"{evidence}; float32 convolutions run in TF32")
    evidence += f"; {num_float32} of {total} convolutions without tensor cores"
    remedy, overrides = "compute in 16 bits", ["trainer.precision=mixed"]
    if has_tf32:
        evidence += ", because cudnn.allow_tf32 is off (set_float32_matmul_precision does not affect convolutions)"
        remedy += ", or in TF32"
        overrides.append("callbacks.acceleration.tf32=true")
    return Finding(rule, True, evidence, remedy, tuple(overrides))
