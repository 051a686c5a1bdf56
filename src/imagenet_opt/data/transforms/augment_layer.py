"""The operations of augmentation, and one of them for each image of a batch: what policies draw and the device does."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Operation(IntEnum):
    """What happens to an image. From ROTATE on, the operations move pixels; all of these are one call."""

    NOTHING = 0
    AUTOCONTRAST = 1
    EQUALIZE = 2
    INVERT = 3
    POSTERIZE = 4
    SOLARIZE = 5
    SOLARIZE_ADD = 6
    COLOR = 7
    CONTRAST = 8
    BRIGHTNESS = 9
    SHARPNESS = 10
    ROTATE = 11
    SHEAR_X = 12
    SHEAR_Y = 13
    TRANSLATE_X = 14
    TRANSLATE_Y = 15


class Layer(NamedTuple):
    """One operation for each image of a batch.

    operations: int64 (N,), values of Operation. arguments: float64 (N,): bits to keep (0 to 8) of POSTERIZE; first grey
    level that SOLARIZE inverts; grey levels that SOLARIZE_ADD adds below 128 (0 to 128); factor (1 changes nothing) of
    COLOR, CONTRAST, BRIGHTNESS and SHARPNESS; degrees counterclockwise of ROTATE; pixels per pixel of the shears;
    pixels to the right or down of the translations. fill: red, green, blue, 0 to 255, of pixels from outside an image.
    """

    operations: NDArray[np.int64]
    arguments: NDArray[np.float64]
    fill: tuple[int, int, int]


def joined_layer(parts: Sequence[Layer]) -> Layer:
    """The layer of a batch from those of its parts."""
    operations, arguments = (np.concatenate(arrays) for arrays in zip(*(part[:2] for part in parts), strict=True))
    return Layer(operations, arguments, parts[0].fill)
