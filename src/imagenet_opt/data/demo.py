"""Draws a small data set on first use, so that training runs without data.

Ten classes of textures and shapes, as real JPEGs of many sizes, with a folder per class. Colours, scale, angle,
contrast, lighting and noise have the same distribution in all classes, so only the form distinguishes the classes.
"""

import colorsys
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from imagenet_opt.display.progress import progress
from imagenet_opt.errors import ConfigError

Plane = NDArray[np.floating[Any]]
"""float32 (height, width)."""


def demo_folder(cache: Path, num_train: int, num_val: int) -> Path:
    """Folder with train/<class>/*.jpg and val/<class>/*.jpg, at least one each, which are drawn if it does not exist.

    Image i of a class is the same in data sets of any size. The folder appears at once with all images, so several
    processes may call this function together. Raises ConfigError for a folder that cannot be written.
    """
    folder = cache / f"demo-{num_train}-{num_val}"
    if (folder / "val").is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{folder.name}-") as scratch:
            fresh = Path(scratch, "fresh")
            _draw_all(fresh, {"train": num_train, "val": num_val})
            try:
                fresh.rename(folder)
            except OSError:
                if not (folder / "val").is_dir():  # another process may have been faster
                    raise
    except OSError as error:
        remedy = "set data.cache_dir to a folder that can be written"
        raise ConfigError(f"cannot write the demo images: {error}; {remedy}") from error
    return folder


def _draw_all(folder: Path, counts: dict[str, int]) -> None:
    total, drawn = sum(counts.values()), 0
    with progress("drawing demo images", "images") as show:
        for split, count in enumerate(counts.values()):
            places = [folder / list(counts)[split] / name for name in DEMO_CLASSES]
            for place in places:
                place.mkdir(parents=True)
            for i in range(count):
                index, label = divmod(i, len(DEMO_CLASSES))
                image, quality = draw(split, label, index)
                image.save(places[label] / f"{index:05d}.jpg", quality=quality)
                show(drawn := drawn + 1, total)


def draw(split: int, label: int, index: int) -> tuple[Image.Image, int]:
    """One image and its JPEG quality, a function of the arguments alone."""
    rng = np.random.default_rng((0, split, label, index))
    short, aspect = rng.uniform(72, 161), math.exp(rng.uniform(-0.5, 0.5))
    height, width = int(short * max(1, aspect)), int(short * max(1, 1 / aspect))
    x, y, period = _coordinates(rng, height, width)
    distance = _FORMS[DEMO_CLASSES[label]](rng, x, y)
    ink = np.clip(0.5 - distance * (period / rng.uniform(1, 3)), 0, 1)
    image = Image.fromarray(_paint(rng, ink))
    grey = rng.random() < 0.03
    return image.convert("L") if grey else image, int(rng.integers(70, 96))


def _coordinates(rng: Generator, height: int, width: int) -> tuple[Plane, Plane, float]:
    """Rotated, stretched and slightly warped coordinates in periods of the form, and the period in pixels."""
    period = min(height, width) * 0.14 * math.exp(rng.uniform(0, 0.9))
    angle, stretch = rng.uniform(0, 2 * math.pi), math.exp(rng.uniform(-0.25, 0.25))
    across = (np.arange(width, dtype=np.float32) - width * rng.uniform(0.35, 0.65)) / period
    down = (np.arange(height, dtype=np.float32)[:, None] - height * rng.uniform(0.35, 0.65)) / period
    x, y = _turn(across, down, angle)
    warp = rng.uniform(0, 0.2)
    return x * stretch + warp * _clouds(rng, x, 5), y / stretch + warp * _clouds(rng, x, 5), period


def _turn(x: Plane, y: Plane, angle: float) -> tuple[Plane, Plane]:
    cos, sin = math.cos(angle), math.sin(angle)
    return cos * x + sin * y, cos * y - sin * x


def _clouds(rng: Generator, like: Plane, cells: int) -> Plane:
    """Smooth noise with a variance of about 1, with `cells` bumps per side, in the shape of `like`."""
    coarse = Image.fromarray(rng.standard_normal((cells, cells), dtype=np.float32))
    return np.asarray(coarse.resize(like.shape[::-1], Image.Resampling.BICUBIC))


def _paint(rng: Generator, ink: Plane) -> NDArray[np.uint8]:
    """Pixels (H, W, C): a form in one colour gradient on another as background, with soft light and grain."""
    height, width = ink.shape
    across, down = np.linspace(-1, 1, width, dtype=np.float32), np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    ramp = 0.5 + 0.35 * _turn(across, down, rng.uniform(0, 2 * math.pi))[0]
    dark = [_colour(rng, (0.3, 1.0), (0.05, 0.5)) for _ in range(2)]
    light = [_colour(rng, (0.05, 0.7), (0.65, 1.0)) for _ in range(2)]
    two_tones = (dark, light) if rng.random() < 0.5 else (light, dark)
    pixels_CHW, ink_CHW = (first + (second - first) * ramp for first, second in two_tones)
    pixels_CHW += (ink_CHW - pixels_CHW) * (ink * rng.uniform(0.3, 1))
    for _ in range(rng.integers(0, 4)):
        away = np.hypot(across - rng.uniform(-1, 1), down - rng.uniform(-1, 1))
        spot = np.clip((rng.uniform(0.15, 0.5) - away) * 8, 0, rng.uniform(0.2, 0.7))
        pixels_CHW += (_colour(rng, (0.0, 0.8), (0.5, 1.0)) - pixels_CHW) * spot
    pixels_CHW += rng.uniform(1, 16) * rng.standard_normal(ink.shape, dtype=np.float32)
    return np.ascontiguousarray(pixels_CHW.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))


def _colour(rng: Generator, saturation: tuple[float, float], value: tuple[float, float]) -> Plane:
    """A random RGB colour in [0, 255], as (3, 1, 1) to spread over a plane."""
    rgb = colorsys.hsv_to_rgb(rng.random(), rng.uniform(*saturation), rng.uniform(*value))
    return np.array(rgb, dtype=np.float32).reshape(3, 1, 1) * 255


# The forms. Each function returns the signed distance to the edge of the ink, in periods, negative inside.


def _from_centre(phase: Plane) -> Plane:
    """Distance from the nearest half-integer: [-0.5, 0.5)."""
    return phase - np.floor(phase) - 0.5


def _bands(rng: Generator, phase: Plane) -> Plane:
    return np.abs(_from_centre(phase)) - rng.uniform(0.17, 0.33)


def _turned_cells(rng: Generator, x: Plane, y: Plane, most: float) -> tuple[Plane, Plane]:
    """Coordinates from the centre of the unit cell around each pixel; each cell is rotated by up to `most`."""
    angles = rng.uniform(-most, most, size=(16, 16)).astype(np.float32)
    cell = (np.floor(x).astype(np.int32) & 15, np.floor(y).astype(np.int32) & 15)
    x, y, cos, sin = _from_centre(x), _from_centre(y), np.cos(angles)[cell], np.sin(angles)[cell]
    return cos * x + sin * y, cos * y - sin * x


def _checkerboard(rng: Generator, x: Plane, y: Plane) -> Plane:
    waves: Plane = np.sin(math.pi * x) * np.sin(math.pi * y)
    return waves / math.pi


def _crosses(rng: Generator, x: Plane, y: Plane) -> Plane:
    x, y = _turned_cells(rng, x, y, 0.4)
    long, thick = rng.uniform(0.34, 0.44), rng.uniform(0.06, 0.13)
    bar = np.maximum(np.abs(x) - long, np.abs(y) - thick)
    return np.minimum(bar, np.maximum(np.abs(y) - long, np.abs(x) - thick))


def _dots(rng: Generator, x: Plane, y: Plane) -> Plane:
    return np.hypot(_from_centre(x), _from_centre(y)) - rng.uniform(0.22, 0.4)


def _grid(rng: Generator, x: Plane, y: Plane) -> Plane:
    return np.minimum(np.abs(_from_centre(x)), np.abs(_from_centre(y))) - rng.uniform(0.06, 0.14)


def _marble(rng: Generator, x: Plane, y: Plane) -> Plane:
    veins = 2 * _clouds(rng, x, 5) + 0.5 * _clouds(rng, x, 11)
    return _bands(rng, 0.7 * veins)


def _rings(rng: Generator, x: Plane, y: Plane) -> Plane:
    return _bands(rng, np.hypot(x, y) + rng.random())


def _spiral(rng: Generator, x: Plane, y: Plane) -> Plane:
    arms, twist = int(rng.integers(2, 6)), math.copysign(rng.uniform(0.4, 1.0), rng.random() - 0.5)
    radius = np.hypot(x, y) + 0.05
    phase = arms * (np.arctan2(y, x) / (2 * math.pi) + twist * np.log(radius))
    return _bands(rng, phase) * radius * (2 * math.pi / (arms * math.hypot(1, 2 * math.pi * twist)))


def _stripes(rng: Generator, x: Plane, y: Plane) -> Plane:
    return _bands(rng, x + rng.random())


def _triangles(rng: Generator, x: Plane, y: Plane) -> Plane:
    x, y = _turned_cells(rng, x, y, math.pi)
    sides = [_turn(x, y, angle)[0] for angle in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
    outermost: Plane = np.maximum.reduce(sides)
    return outermost - rng.uniform(0.16, 0.23)


def _waves(rng: Generator, x: Plane, y: Plane) -> Plane:
    height, length = rng.uniform(0.25, 0.45), rng.uniform(1.4, 2.2)
    return _bands(rng, x + height * np.sin(2 * math.pi / length * y))


_FORMS: dict[str, Callable[[Generator, Plane, Plane], Plane]] = {
    "checkerboard": _checkerboard, "crosses": _crosses, "dots": _dots, "grid": _grid, "marble": _marble,
    "rings": _rings, "spiral": _spiral, "stripes": _stripes, "triangles": _triangles, "waves": _waves,
}  # fmt: skip
DEMO_CLASSES: tuple[str, ...] = tuple(_FORMS)
