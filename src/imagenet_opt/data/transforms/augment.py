"""Draws the augmentation of training batches, in a worker: RandAugment, TrivialAugment, shifts, colours, erased boxes.

`layers` of a policy turns draws, float64 (N, num_draws) in [0, 1), into layers of operations, on the host. Its `stream`
separates the draws from other draws for the same image. size: of the images.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from imagenet_opt.data.randomness import sample_uniform
from imagenet_opt.data.transforms.augment_ops import Augmentation, Boxes, Layer, Operation
from imagenet_opt.data.transforms.resize import Size, height_width
from imagenet_opt.errors import ConfigError

Numbers = NDArray[np.float64]
Argument = Callable[[Numbers, Numbers], Numbers]
"""(strengths, signs), by image -> arguments of an operation. A sign is 1 or -1."""

TRIVIAL = "trivialaugment"
_BLACK = (0, 0, 0)
_MEAN_COLOR = (124, 116, 104)  # ImageNet's mean colour, as in timm
_TRIES = 10
_AREA = (0.02, 1 / 3)
_RATIO = (0.3, 1 / 0.3)
_ENHANCEMENTS = (Operation.COLOR, Operation.CONTRAST, Operation.BRIGHTNESS, Operation.SHARPNESS)


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """RandAugment of timm (timm.data.auto_augment; arXiv 1909.13719), but always with bilinear interpolation.

    Each image gets `num_layers` of 15 operations, each with `probability`. The magnitude, 0 to `largest`, is normally
    distributed around `magnitude` with deviation `noise`; with `noise` above 100, uniform from 0 to `magnitude`.
    increasing: a larger magnitude strengthens every operation; otherwise it weakens posterize and solarize, and the
    enhancements are weakest at 5.
    """

    magnitude: int = 10
    num_layers: int = 2
    probability: float = 0.5
    noise: float = 0.0
    largest: int = 10
    increasing: bool = False

    stream: ClassVar[int] = 1
    OPERATIONS: ClassVar = tuple(operation for operation in Operation if operation is not Operation.NOTHING)
    _DRAWS: ClassVar[int] = 5  # operation, whether to apply it, two for the magnitude, sign

    @property
    def num_draws(self) -> int:
        return self._DRAWS * self.num_layers

    def layers(self, draws: Numbers, size: Size) -> list[Layer]:
        arguments, layers = _rand_arguments(size, increasing=self.increasing), []
        for part in np.split(draws, self.num_layers, axis=1):
            operations = np.where(part[:, 1] < self.probability, _choose(self.OPERATIONS, part[:, 0]), 0)
            strengths = self._magnitudes(part[:, 2], part[:, 3]) / 10
            layers.append(_layer(operations, strengths, part[:, 4], arguments, _MEAN_COLOR))
        return layers

    def _magnitudes(self, first: Numbers, second: Numbers) -> Numbers:
        if self.noise > 100:
            magnitudes = first * self.magnitude
        else:
            normal = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)  # Box and Muller, 1958
            magnitudes = self.magnitude + self.noise * normal
        return np.clip(magnitudes, 0, self.largest)


@dataclass(frozen=True)
class TrivialAugment:
    """TrivialAugmentWide of torchvision's recipes (arXiv 2103.10158): one of 14 operations for each image, with one of
    31 magnitudes; bilinear, black outside of the image."""

    stream: ClassVar[int] = 1
    num_draws: ClassVar[int] = 3
    OPERATIONS: ClassVar = tuple(
        operation for operation in Operation if operation not in (Operation.INVERT, Operation.SOLARIZE_ADD)
    )
    _BINS: ClassVar[int] = 31

    def layers(self, draws: Numbers, size: Size) -> list[Layer]:
        strengths = np.floor(draws[:, 1] * self._BINS) / (self._BINS - 1)
        return [_layer(_choose(self.OPERATIONS, draws[:, 0]), strengths, draws[:, 2], _trivial_arguments(), _BLACK)]


@dataclass(frozen=True)
class Shift:
    """Moves each image by up to `pixels` whole pixels along each axis: as padding by `pixels` with the colour `fill`,
    and then a random crop of the old size."""

    pixels: int
    fill: tuple[int, int, int]

    stream: ClassVar[int] = 4
    num_draws: ClassVar[int] = 2
    OPERATIONS: ClassVar = (Operation.TRANSLATE_X, Operation.TRANSLATE_Y)

    def layers(self, draws: Numbers, size: Size) -> list[Layer]:
        moves = np.floor(draws * (2 * self.pixels + 1)) - self.pixels
        operations = np.repeat([self.OPERATIONS], len(draws), axis=0).astype(np.int64)
        return [Layer(operations[:, axis], moves[:, axis], self.fill) for axis in (0, 1)]


@dataclass(frozen=True)
class ColorJitter:
    """torchvision's ColorJitter without hue: brightness, contrast and saturation change in a random order, each by a
    factor from 1 - amount (at least 0) to 1 + amount. amounts: of the three."""

    amounts: tuple[float, float, float]

    stream: ClassVar[int] = 5
    num_draws: ClassVar[int] = 4
    OPERATIONS: ClassVar = (Operation.BRIGHTNESS, Operation.CONTRAST, Operation.COLOR)

    def layers(self, draws: Numbers, size: Size) -> list[Layer]:
        least, most = np.maximum(0, 1 - np.array(self.amounts)), 1 + np.array(self.amounts)
        factors = least + draws[:, 1:] * (most - least)
        orders = np.array(list(permutations(range(3))))[(draws[:, 0] * 6).astype(int)]
        chosen = np.array(self.OPERATIONS, dtype=np.int64)[orders]
        ordered = np.take_along_axis(factors, orders, axis=1)
        return [Layer(chosen[:, i], ordered[:, i], _BLACK) for i in range(3)]


Policy = RandAugment | TrivialAugment | Shift | ColorJitter


@dataclass(frozen=True, kw_only=True)
class RandomErasing:
    """Erases one box of an image with `probability`, as timm does (timm.data.random_erasing; arXiv 1708.04896).

    The box has 1/50 to 1/3 of the area, and a height of 0.3 to 3.3 times its width. The first of ten tries that fits
    counts; if no try fits, the image stays.
    """

    probability: float

    stream: ClassVar[int] = 3
    num_draws: ClassVar[int] = 2 + 4 * _TRIES  # the second is unused

    def boxes(self, draws: NDArray[np.float64], size: Size) -> Boxes:
        """draws: float64 (N, num_draws) in [0, 1). size: of the images."""
        limits = np.array(height_width(size))
        u = draws[:, 2:].reshape(len(draws), _TRIES, 4)
        area = limits.prod() * (_AREA[0] + u[..., 0] * (_AREA[1] - _AREA[0]))
        ratio = np.exp(np.log(_RATIO[0]) + u[..., 1] * (np.log(_RATIO[1]) - np.log(_RATIO[0])))
        sides = np.round(np.sqrt(np.stack([area * ratio, area / ratio]))).astype(np.int64)
        fits = ((sides < limits[:, None, None]) & (sides > 0)).all(axis=0)
        first, rows = fits.argmax(axis=1), np.arange(len(u))
        heights, widths = sides[:, rows, first]
        tops = (u[rows, first, 2] * (limits[0] - heights + 1)).astype(np.int64)
        lefts = (u[rows, first, 3] * (limits[1] - widths + 1)).astype(np.int64)
        boxes = np.stack([rows, tops, lefts, heights, widths], axis=1)
        erased: Boxes = boxes[fits.any(axis=1) & (draws[:, 0] < self.probability)]
        return erased


@dataclass(frozen=True, kw_only=True)
class Augmenter:
    """Draws the augmentation of batches. The augmentation of an image is a function of (seed, pass, sample index)."""

    seed: int
    policies: tuple[Policy, ...]
    erasing: RandomErasing | None

    def draw(self, indices: NDArray[np.int64], pass_ids: NDArray[np.int64], size: int) -> Augmentation:
        """size: pixels of a side of the images."""

        def draws(source: Policy | RandomErasing) -> NDArray[np.float64]:
            return sample_uniform(self.seed, pass_ids, indices, source.num_draws, stream=source.stream)

        layers = tuple(layer for policy in self.policies for layer in policy.layers(draws(policy), size))
        erased = self.erasing.boxes(draws(self.erasing), size) if self.erasing else None
        return Augmentation(layers=layers, erased=erased)


def parse_policy(text: str | None) -> RandAugment | TrivialAugment | None:
    """The policy that data.augment names. Raises ConfigError."""
    if text is None:
        return None
    if text == TRIVIAL:
        return TrivialAugment()
    name, *sections = text.split("-")
    matches = [re.fullmatch(r"(p|mstd)(\d+(?:\.\d+)?|inf)|(m|n|mmax|inc)(\d+)", section) for section in sections]
    numbers = {match[1] or match[3]: float(match[2] or match[4]) for match in matches if match}
    policy = RandAugment(
        magnitude=int(numbers.get("m", 10)),
        num_layers=int(numbers.get("n", 2)),
        probability=numbers.get("p", 0.5),
        noise=numbers.get("mstd", 0.0),
        largest=int(numbers.get("mmax", 10)) or 10,
        increasing=bool(numbers.get("inc", 0)),
    )
    is_valid = policy.magnitude <= policy.largest and policy.num_layers > 0 and policy.probability <= 1
    if name != "rand" or None in matches or not is_valid:
        raise ConfigError(
            f"data.augment={text} must be null, {TRIVIAL}, or timm's RandAugment such as rand-m7-mstd0.5-inc1: "
            "rand and any of m (magnitude, 0 to mmax, which is 10), n (operations an image, at least 1), p "
            "(probability of each, at most 1), mstd, mmax, inc (0 or 1)"
        )
    return policy


def _choose(operations: tuple[Operation, ...], draws: Numbers) -> NDArray[np.int64]:
    return np.array(operations, dtype=np.int64)[(draws * len(operations)).astype(np.int64)]


def _layer(
    operations: NDArray[np.int64],
    strengths: Numbers,
    signs: Numbers,
    arguments: Mapping[Operation, Argument],
    fill: tuple[int, int, int],
) -> Layer:
    """signs: in [0, 1); a number below 0.5 means minus."""
    values = np.zeros(len(operations))
    signs = np.where(signs < 0.5, -1.0, 1.0)
    for operation, argument_of in arguments.items():
        rows = operations == operation
        values[rows] = argument_of(strengths[rows], signs[rows])
    return Layer(operations, values, fill)


def _signed(most: float, *, middle: float = 0.0, least: float = -np.inf) -> Argument:
    return lambda strength, sign: np.maximum(middle + most * strength * sign, least)


def _rand_arguments(size: Size, *, increasing: bool) -> dict[Operation, Argument]:
    """timm's LEVEL_TO_ARG; strength is magnitude / 10. Posterize cannot keep less than 0 bits."""
    height, width = height_width(size)
    enhance = _signed(0.9, middle=1.0, least=0.1) if increasing else lambda strength, sign: strength * 1.8 + 0.1

    def posterize(strength: Numbers, sign: Numbers) -> Numbers:
        bits = np.floor(strength * 4)
        kept: Numbers = np.maximum(4 - bits if increasing else bits, 0)
        return kept

    def solarize(strength: Numbers, sign: Numbers) -> Numbers:
        threshold = np.minimum(256, np.floor(strength * 256))
        return 256 - threshold if increasing else threshold

    return {
        **_moves(rotate=30.0, shear=0.3, translate_x=_signed(0.45 * width), translate_y=_signed(0.45 * height)),
        **dict.fromkeys(_ENHANCEMENTS, enhance),
        Operation.POSTERIZE: posterize,
        Operation.SOLARIZE: solarize,
        Operation.SOLARIZE_ADD: lambda strength, sign: np.minimum(128, np.floor(strength * 110)),
    }


def _trivial_arguments() -> dict[Operation, Argument]:
    """torchvision's TrivialAugmentWide._augmentation_space; strength is bin / 30."""

    def translate(strength: Numbers, sign: Numbers) -> Numbers:
        pixels: Numbers = np.trunc(32 * strength * sign)
        return pixels

    return {
        **_moves(rotate=135.0, shear=0.99, translate_x=translate, translate_y=translate),
        **dict.fromkeys(_ENHANCEMENTS, _signed(0.99, middle=1.0)),
        Operation.POSTERIZE: lambda strength, sign: 8 - np.round(6 * strength),
        Operation.SOLARIZE: lambda strength, sign: 255 * (1 - strength),
    }


def _moves(*, rotate: float, shear: float, translate_x: Argument, translate_y: Argument) -> dict[Operation, Argument]:
    return {
        Operation.ROTATE: _signed(rotate),
        Operation.SHEAR_X: _signed(shear),
        Operation.SHEAR_Y: _signed(shear),
        Operation.TRANSLATE_X: translate_x,
        Operation.TRANSLATE_Y: translate_y,
    }
