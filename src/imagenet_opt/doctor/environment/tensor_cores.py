"""Checks sizes and memory format for tensor cores."""

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.setup import Setup

_BYTES = 16
_PREFERRED_BYTES = 128
"""Sizes should be multiples of _BYTES, on an A100 rather of _PREFERRED_BYTES: 8 and 64 values of 16 bits, 4 and 32 of
TF32. Source: NVIDIA, Matrix Multiplication Background User's Guide, section Tensor Core Requirements."""


def check_multiples(setup: Setup) -> Finding:
    """Check that batch size, channels and number of classes are multiples that tensor cores need."""
    rule = "tensor_core_multiples"
    if setup.cuda_index is None:
        return Finding(rule, None, "no CUDA GPU here")
    if setup.precision.startswith("64"):
        return Finding(rule, None, f"tensor cores are not used in trainer.precision={setup.precision}")
    value_bytes = 4 if setup.precision.startswith("32") else 2
    multiple, preferred = _BYTES // value_bytes, _PREFERRED_BYTES // value_bytes
    keys = (("data.batch_size", (setup.batch_size,)), ("classes", (setup.num_classes,)), ("channels", setup.widths))
    off = [f"{name} {n}" for name, sizes in keys for n in sorted(set(sizes)) if n % multiple]
    if not off:
        better = sorted({n for _, sizes in keys for n in sizes if n % preferred})
        rest = f"; not of {preferred}, which are faster on an A100: {', '.join(map(str, better))}" if better else ""
        return Finding(rule, False, f"all sizes are multiples of {multiple}{rest}")
    size = setup.batch_size
    return Finding(
        rule,
        True,
        f"no multiples of {multiple}, as tensor cores need in trainer.precision={setup.precision}: {', '.join(off)}",
        remedy="round the batch size, and the network's channels if you can choose them",
        overrides=(f"data.batch_size={-(-size // multiple) * multiple}",) if size % multiple else (),
    )


def check_channels_last(setup: Setup) -> Finding:
    """Check the memory format: cuDNN's tensor-core convolutions take NHWC; NCHW data is converted each time.

    Source: NVIDIA, Convolutional Layers User's Guide, section Tensor Layouts In Memory.
    """
    rule = "channels_last"
    if setup.cuda_index is None:
        return Finding(rule, None, "no CUDA GPU here")
    if setup.channels_last or setup.precision.startswith("64"):
        return Finding(rule, False, "images and weights are channels_last, or the precision does not need it")
    return Finding(
        rule,
        True,
        "images and weights are in NCHW order, which tensor cores do not accept: each convolution converts them",
        remedy="keep images and weights in channels_last order",
        overrides=("callbacks.acceleration.channels_last=true",),
    )
