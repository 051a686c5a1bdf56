"""Sizes and memory format that tensor cores take without waste."""

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.environment.setup import Setup

_BYTES = 16
_PREFERRED_BYTES = 128
"""Sizes should be multiples of so many bytes, and on an A100 rather of the second. So 8 and 64 values of 16 bits, 4 and
32 of TF32. Source: NVIDIA, Matrix Multiplication Background User's Guide, section Tensor Core Requirements."""


def check_multiples(setup: Setup) -> Finding:
    """Batch size, channels and number of classes."""
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
        rest = f"; not of {preferred}, which an A100 likes better: {', '.join(map(str, better))}" if better else ""
        return Finding(rule, False, f"all sizes are multiples of {multiple}{rest}")
    size = setup.batch_size
    return Finding(
        rule,
        True,
        f"no multiples of {multiple}, which tensor cores want in trainer.precision={setup.precision}: {', '.join(off)}",
        remedy="round the batch size, and the network's channels where they are yours to choose",
        overrides=(f"data.batch_size={-(-size // multiple) * multiple}",) if size % multiple else (),
    )


def check_channels_last(setup: Setup) -> Finding:
    """cuDNN's tensor-core convolutions take NHWC; others are transposed there and back.

    Source: NVIDIA, Convolutional Layers User's Guide, section Tensor Layouts In Memory.
    """
    rule = "channels_last"
    if setup.cuda_index is None:
        return Finding(rule, None, "no CUDA GPU here")
    if setup.channels_last or setup.precision.startswith("64"):
        return Finding(rule, False, "images and weights are channels_last, or need not be")
    return Finding(
        rule,
        True,
        "images and weights are in NCHW order, which tensor cores do not take: each convolution turns them",
        remedy="keep them channels_last",
        overrides=("callbacks.acceleration.channels_last=true",),
    )
