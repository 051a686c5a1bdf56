"""Decides compile=auto and cuda_graph=auto of `Acceleration`."""

from typing import Literal

from imagenet_opt.model.compiled_forward import WITHOUT_GRAPHS

AUTO: Literal["auto"] = "auto"
EARNED_PIXELS = 5e10
"""Pixels of all training images of a run from which compiling earns its time back: one million images of 224 px.

Measured with ResNet-50 on an H100 (docs/results_gpu.md): compiling took 72 s, and training in bfloat16 rose from 4,110
to 5,728 images/s, which saves 69 microseconds per image of 224 px; 72 s / 69 us are 1.05 million images. A slower GPU
is reckoned to save more time per image, and so to need fewer images."""


def earns_compiling(num_images: float, side: float) -> bool:
    """Whether a run on a GPU trains long enough to compile. num_images: of the whole run, all processes together,
    `inf` for a run without end. side: width in pixels of its first images."""
    return num_images * side**2 >= EARNED_PIXELS


def reason(num_images: float, side: float) -> str:
    """The numbers behind `earns_compiling`, for the user."""
    return (
        f"the run trains {_thousands(num_images)} images of {side:.0f} px, and compiling pays from "
        f"{_thousands(EARNED_PIXELS / side**2)} on"
    )


def forbids_graph(
    *, device: str, num_processes: int, gradient_checkpointing: bool, compile: bool | Literal["auto"], compile_mode: str
) -> bool:
    """Whether cuda_graph=auto is off. A compile mode that makes its own graphs forbids it, also while compile=auto is
    undecided."""
    own_graphs = bool(compile) and compile_mode in WITHOUT_GRAPHS
    return device != "cuda" or num_processes > 1 or gradient_checkpointing or own_graphs


def _thousands(num_images: float) -> str:
    return f"{num_images:,.0f}" if num_images != float("inf") else "endlessly many"
