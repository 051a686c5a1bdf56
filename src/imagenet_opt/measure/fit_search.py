"""The largest batch that fits into a memory, found with few trials."""

from collections.abc import Callable

MULTIPLE = 8
"""Tensor cores take whole tiles of so many 16-bit values (NVIDIA, Matrix Multiplication Background, User's Guide)."""


def largest_that_fits(fits: Callable[[int], bool], *, start: int, most: int, stride: int | None = None) -> int:
    """The largest size up to `most` for which `fits` says yes; 0 where not one image fits.

    Sizes are multiples of 8, and 4, 2, 1 below. From `start` it doubles, or halves, until both sides are known, and
    bisects between them: about twice log2(most / 8) trials at the most. What fits is taken to fit in all that is
    smaller too.
    stride: where `start` is a good guess, the first step away from it; each further one is twice as long.
    """
    most = whole(most)
    stride = max(MULTIPLE, stride or most)
    fitting, failing = 0, most + MULTIPLE
    size = whole(min(max(1, start), most))
    while size > fitting:
        if fits(size):
            fitting = size
        else:
            failing = size
        size = _next(fitting, failing, most, stride)
        stride *= 2
    return fitting


def _next(fitting: int, failing: int, most: int, stride: int) -> int:
    """The size to try; not above `fitting` where there is none left."""
    if failing > most:
        return whole(min(2 * fitting, fitting + stride, most))
    if not fitting:
        return whole(max(failing // 2, failing - stride)) if failing > 1 else 0
    return whole((fitting + failing) // 2)


def whole(size: int) -> int:
    """The nearest size at or below, of those that are tried."""
    return size // MULTIPLE * MULTIPLE if size >= MULTIPLE else 1 << (size.bit_length() - 1)


def even_parts(num_images: int, most: int) -> int:
    """Images of each micro-batch when `num_images` are cut into the fewest parts of at most `most`, nearly equal."""
    num_parts = -(-num_images // most)
    size = -(-num_images // num_parts)
    return min(most, -(-size // MULTIPLE) * MULTIPLE)
