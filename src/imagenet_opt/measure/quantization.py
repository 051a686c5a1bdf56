"""Sizes of layers and the multiples that the hardware computes in.

A device computes whole blocks: what a size lacks to a multiple of the block is computed for nothing, or a slower way
is taken that needs no multiple. Source: NVIDIA, Deep Learning Performance Guide: Matrix Multiplication Background,
sections Tensor Core Requirements and Dimension Quantization Effects; multiples of 8 for 16-bit numbers, of 64 on A100
and later.
"""

from collections.abc import Sequence

MULTIPLES = (64, 8)


def multiple_of(size: int) -> int:
    """64, 8, or 1 for neither."""
    return next((multiple for multiple in MULTIPLES if size % multiple == 0), 1)


def neighbour(size: int, sizes: Sequence[int]) -> int | None:
    """The nearest of `sizes` that is a better multiple, the larger of two; None where there is none."""
    better = [other for other in sizes if multiple_of(other) > multiple_of(size)]
    return min(better, key=lambda other: (abs(other - size), -other), default=None)


def padded_share(size: int, multiple: int, power: int) -> float:
    """Useful share of the work, 0 to 1, where sizes are filled up to a multiple; work grows with size ** power."""
    return (size / (-(-size // multiple) * multiple)) ** power
