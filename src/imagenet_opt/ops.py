"""The operations that the loader and the training use, for a loop of your own.

`decode` and `ragged` run on the CPU, also in the workers of a DataLoader. The others run on the device of their tensors
for a whole batch at once, with other random numbers for each image; nothing is read from a GPU. docs/reference/ops.md
has a table and an example. An argument that cannot be used raises ConfigError.

generator: a torch.Generator of the CPU; None is torch's global one, which torch.manual_seed seeds.
"""

import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from imagenet_opt.data.batch import RaggedBuilder, resize_ragged
from imagenet_opt.data.decode.decoder import Decoder, OpenedImage
from imagenet_opt.data.decode.nvimagecodec import Box, Pixels
from imagenet_opt.data.options import checked
from imagenet_opt.data.storage.retry import tell_once
from imagenet_opt.data.transforms import augment_ops
from imagenet_opt.data.transforms import resize as resizing
from imagenet_opt.data.transforms.augment import (
    ColorJitter,
    Policy,
    RandAugment,
    RandomErasing,
    Shift,
    TrivialAugment,
    parse_policy,
)
from imagenet_opt.data.transforms.augment_ops import Layer, Operation
from imagenet_opt.data.transforms.resize import (
    DTYPES,
    MEAN,
    RGB,
    STD,
    ImageFormat,
    RaggedCrops,
    Size,
)
from imagenet_opt.errors import ConfigError, own_names

__all__ = [
    "ColorJitter", "Layer", "Operation", "RaggedCrops", "RandAugment", "Shift", "TrivialAugment", "augment", "decode",
    "erase", "normalize", "ragged", "resize",
]  # fmt: skip

_FLOATS = tuple(dtype for dtype in DTYPES if dtype.is_floating_point)
_LARGEST = {Operation.POSTERIZE: 8, Operation.SOLARIZE: 256, Operation.SOLARIZE_ADD: 128}
"""Arguments of operations that replace grey levels by a table; the smallest is 0."""


@own_names(root="encoded")
def decode(
    encoded: bytes,
    box: Box | Callable[[int, int], Box] | None = None,
    *,
    name: str = "the image",
    exif_rotation: bool = False,
    max_pixels: int = 10**8,
) -> Tensor:
    """Pixels of a part of an encoded image: uint8 (height, width, 3), RGB.

    nvImageCodec decodes only the box of an ordinary JPEG, on the CPU, with the bits of a whole decode. Pillow
    decodes other files whole.

    encoded: content of the file. box: top, left, height, width in pixels, or a function that chooses them by the height
    and width of the image; None: all. name: of the file, for errors. exif_rotation: rotate as the EXIF data say, before
    the box. max_pixels: of an image; larger ones are refused. Raises BadSample for bytes that cannot be decoded.
    """
    if not isinstance(encoded, bytes):
        raise ConfigError(f"encoded is a {type(encoded).__name__}; expected bytes, as of Path(FILE).read_bytes()")
    decoder = Decoder(exif_rotation=exif_rotation, max_crop_pixels=max_pixels, max_pixels=max_pixels)
    image = decoder.open(encoded, name)
    chosen = box(image.height, image.width) if callable(box) else box or (0, 0, image.height, image.width)
    pixels = decoder.crop(image, _box(chosen, image)).copy()  # the codec uses its memory again
    for note in decoder.take_notes():
        tell_once(note, logging.WARNING)
    return torch.from_numpy(pixels)


def ragged(
    crops: Sequence[Tensor | Pixels], *, flips: ArrayLike | None = None, windows: ArrayLike | None = None
) -> RaggedCrops:
    """Crops of different sizes in one buffer, for `resize`. A DataLoader pins it; `to(device, non_blocking=True)` sends
    it.

    crops: uint8 (height, width, 3) each, on the CPU, as from `decode`. flips: bool (N,), True to mirror the crop
    horizontally. windows: float (N, 4), top, left, height and width in pixels of the part of each crop that becomes the
    image; the filters use the pixels around it too. None: the whole crops.
    """
    arrays = [_pixels(number, crop) for number, crop in enumerate(crops)]
    whole = [(0, 0, *array.shape[:2]) for array in arrays] or None
    are_flipped = _numbers("flips", False if flips is None else flips, (len(arrays),))
    parts = _numbers("windows", whole if windows is None else windows, (len(arrays), 4))
    builder = RaggedBuilder(None, len(arrays), 0)
    builder.reserve(len(arrays), sum(array.size // 3 for array in arrays))
    for row, array in enumerate(arrays):
        builder.write(row, array, bool(are_flipped[row]), parts[row])
    return builder.crops()


def resize(
    crops: RaggedCrops,
    size: Size,
    *,
    dtype: torch.dtype = torch.float32,
    interpolation: str = "bilinear",
    mean: RGB = MEAN,
    std: RGB = STD,
) -> Tensor:
    """Crops as images_NCHW of one size, channels_last, on their device: antialiased resize, flip, normalise, cast.

    One Triton kernel on a GPU; torch, image by image, on a CPU. size: pixels of a side, or (height, width). dtype:
    float32, float16 and bfloat16 are normalised by mean and std, of RGB from 0 to 1; uint8 has pixels, 0 to 255.
    interpolation: "bilinear" or "bicubic", as torchvision with antialias=True, or "area", as OpenCV's INTER_AREA.
    """
    if not isinstance(crops, RaggedCrops):
        raise ConfigError(f"crops is a {type(crops).__name__}; expected RaggedCrops, as from imagenet_opt.ops.ragged")
    height, width = _numbers("size", size, (2,), least=1, whole=True).astype(int).tolist()
    format = _format(DTYPES, dtype, mean, std, checked("interpolation", interpolation, "interpolation"))
    return resize_ragged(crops, size=(height, width), format=format)


def normalize(images: Tensor, *, dtype: torch.dtype = torch.float32, mean: RGB = MEAN, std: RGB = STD) -> Tensor:
    """Pixels as normalised images in a float dtype. images: uint8 or float (N, 3, height, width), 0 to 255. mean, std:
    of RGB from 0 to 1."""
    _check_images(images, float_channels=(3,))
    return resizing.normalize(images, _format(_FLOATS, dtype, mean, std))


@own_names(augment="policy")
def augment(images: Tensor, policy: Policy | Layer | str, *, generator: torch.Generator | None = None) -> Tensor:
    """Changed copies of the images, in the same memory format; each image gets operations and strengths of its own.

    images: uint8 (N, 3, height, width). policy: what draws them: RandAugment(...), TrivialAugment(), Shift(...),
    ColorJitter(...), or a text as `data.augment` takes it, such as "rand-m7-mstd0.5-inc1"; or a Layer with an operation
    and an argument for each image that you have drawn.
    """
    _check_images(images)
    chosen = parse_policy(policy) if isinstance(policy, str) else policy
    if isinstance(chosen, Layer):
        layers = [_checked(chosen, len(images))]
    elif isinstance(chosen, Policy):
        draws = _draws(len(images), chosen.num_draws, generator)
        layers = chosen.layers(draws, (images.shape[-2], images.shape[-1]))
    else:
        raise ConfigError(f"policy={policy!r}: expected a policy of imagenet_opt.ops, a Layer or a text")
    return augment_ops.augment(images, layers) if images.numel() else images.clone()


def erase(images: Tensor, probability: float, *, generator: torch.Generator | None = None, mean: RGB = MEAN) -> None:
    """Erase a box of 1/50 to 1/3 of the area of each image with this probability, in place (arXiv 1708.04896).

    images: float (N, channels, height, width), normalised, where the box becomes 0; or uint8 (N, 3, height, width),
    where it becomes `mean`, RGB from 0 to 1.
    """
    _check_images(images, float_channels=None)
    if images.requires_grad and images.is_leaf and torch.is_grad_enabled():
        raise ConfigError("images require gradients and would change in place; erase under torch.no_grad()")
    erasing = RandomErasing(probability=checked("probability", probability, "random_erasing"))
    boxes = erasing.boxes(_draws(len(images), erasing.num_draws, generator), (images.shape[-2], images.shape[-1]))
    augment_ops.erase(images, boxes, checked("mean", mean, "mean"))


def _box(chosen: Any, image: OpenedImage) -> Box:
    try:
        top, left, height, width = map(operator.index, chosen)
    except (TypeError, ValueError):
        top, left, height, width = 0, 0, 0, 0
    if 0 <= top < top + height <= image.height and 0 <= left < left + width <= image.width:
        return top, left, height, width
    size = f"an image of {image.height} x {image.width} pixels (height x width)"
    raise ConfigError(f"box={chosen}: expected top, left, height, width of a part of {size}, whole numbers")


def _pixels(number: int, crop: Any) -> Pixels:
    array: Any = crop.numpy() if isinstance(crop, Tensor) and crop.device.type == "cpu" else crop
    if isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.shape[2:] == (3,) and array.size:
        return array
    found = f"{crop.dtype} {tuple(crop.shape)}" if isinstance(crop, Tensor | np.ndarray) else type(crop).__name__
    raise ConfigError(f"crops[{number}] is {found}; expected uint8 (height, width, 3) on the CPU")


def _numbers(
    name: str,
    values: Any,
    shape: tuple[int, ...],
    *,
    least: float = -np.inf,
    most: float = np.inf,
    whole: bool = False,
) -> NDArray[np.float64]:
    try:
        numbers = np.broadcast_to(np.asarray(values, np.float64), shape)
    except (TypeError, ValueError, RuntimeError) as error:  # of numpy, and of torch for a tensor on a GPU
        raise ConfigError(f"{name}= must be numbers of shape {shape} on the CPU: {error}") from error
    is_good = np.isfinite(numbers) & (numbers >= least) & (numbers <= most)
    if not (is_good & (np.round(numbers) == numbers if whole else True)).all():
        limits = f" from {least:g}" if least > -np.inf else ""
        limits += f" to {most:g}" if most < np.inf else ""
        raise ConfigError(f"{name}={values}: expected {'whole' if whole else 'finite'} numbers{limits}")
    return numbers


def _format(
    dtypes: Sequence[torch.dtype], dtype: torch.dtype, mean: RGB, std: RGB, interpolation: str = "bilinear"
) -> ImageFormat:
    if dtype not in dtypes:
        raise ConfigError(f"dtype={dtype}: expected {', '.join(map(str, dtypes))}")
    if not torch.compiler.is_compiling():  # which cannot follow the checks
        mean, std = checked("mean", mean, "mean"), checked("std", std, "std")
    return ImageFormat(dtype=dtype, interpolation=interpolation, mean=mean, std=std)


def _checked(layer: Layer, num: int) -> Layer:
    largest = max(Operation)
    operations = _numbers("operations", layer.operations, (num,), least=0, most=largest, whole=True).astype(np.int64)
    arguments = _numbers("arguments", layer.arguments, (num,))
    for operation, most in _LARGEST.items():
        if not ((arguments >= 0) & (arguments <= most))[operations == operation].all():
            raise ConfigError(f"arguments={layer.arguments} of {operation.name}: expected 0 to {most}")
    red, green, blue = _numbers("fill", layer.fill, (3,), least=0, most=255, whole=True).astype(int).tolist()
    return Layer(operations, arguments, (red, green, blue))


def _check_images(images: Any, *, float_channels: Sequence[int] | None = ()) -> None:
    """Raise ConfigError for other images than uint8 with 3 channels, or floats with `float_channels`; None: any."""
    found = f"images is a {type(images).__name__}"
    if isinstance(images, Tensor):
        channels = float_channels if images.is_floating_point() else (3,)
        is_known = images.dtype == torch.uint8 or images.is_floating_point()
        if is_known and images.ndim == 4 and (channels is None or images.shape[1] in channels):
            return
        found = f"images are {images.dtype} {tuple(images.shape)}"
    remedy = ": normalize after augmenting" if float_channels == () else ", or floats"
    raise ConfigError(f"{found}; expected torch.uint8 (N, 3, height, width){remedy}")


def _draws(num: int, each: int, generator: torch.Generator | None) -> NDArray[np.float64]:
    if generator is not None and (not isinstance(generator, torch.Generator) or generator.device.type != "cpu"):
        raise ConfigError(f"generator={generator!r}; expected torch.Generator(), which is on the CPU")
    draws: NDArray[np.float64] = torch.rand(num, each, dtype=torch.float64, generator=generator).numpy()
    return draws
