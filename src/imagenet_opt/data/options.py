"""Options of the loader."""

import ast
import inspect
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from imagenet_opt.data.transforms.augment import parse_policy
from imagenet_opt.data.transforms.resize import MEAN, STD
from imagenet_opt.errors import ConfigError

Auto = Literal["auto"]
Filter = Literal["bilinear", "bicubic", "area"]
Share = Annotated[float, Field(gt=0, le=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveAmount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
_LENGTHS = ("missing", "too_long", "tuple_type")
"""Errors of pydantic for a tuple of another length, or none."""


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """The keys of conf/loading.yaml below `data.`, with their defaults and their only documentation.

    Raises ConfigError, with the key, for a value out of range.
    """

    batch_size: PositiveInt = 256
    """Images per step of each process, at least 1. The command line also takes `auto`: the largest batch that fits
    into the device's memory, which a run measures before it begins (docs/tuning.md). Workers hand over a batch of more
    than 512 images in parts, and a batch of validation has at most 512."""
    global_batch_size: PositiveInt | None = None
    """Images per step of all processes together, instead of `batch_size`: each process has an equal share. None:
    `batch_size` x processes. With more images than the device holds at once, set `model.micro_batch_size`."""
    image_size: PositiveInt = 224
    """Pixels of a side of the square training images."""
    num_workers: NonNegativeInt | Auto = "auto"
    """Loader processes of each training process; 0 loads in the training process. "auto": one per usable CPU. A number
    that is too large for the CPUs or the memory is lowered, with one log line."""
    prefetch_factor: PositiveInt | Auto = "auto"
    """Batches, or parts of large batches, that each worker keeps ready, at least 1. "auto": 4. Lowered if the memory
    is too small."""
    crop_scale: tuple[Share, Share] = (0.08, 1.0)
    """Smallest and largest share of an image's area that a training crop takes, above 0 and at most 1."""
    train_crop: Literal["random", "center"] = "random"
    """"random": a random crop of each image; half of the crops are mirrored. "center": the crop of validation."""
    random_shift: NonNegativeInt = 0
    """Each training image moves by up to this number of whole pixels along each axis, on the device, before `augment`:
    as padding with the colour `mean` and then a random crop, usual for small images. 0: no image moves."""
    augment: str | None = None
    """Changes each training image on the device, before normalising. "rand-m7-mstd0.5-inc1" and similar: timm's
    RandAugment, with the sections m, n, p, mstd, mmax and inc. "trivialaugment": torchvision's TrivialAugmentWide.
    None: no augmentation. docs/pipeline.md lists the differences from timm and torchvision. Unproven on a GPU."""
    random_erasing: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the training images, 0 to 1, that lose a box of 1/50 to 1/3 of their area: it gets the mean colour."""
    val_image_size: PositiveInt | None = None
    """Pixels of a side of the square validation images; None: `image_size`."""
    val_crop_ratio: Share = 0.875
    """Side of the centred validation crop, as a share of the image's shorter side; above 0 and at most 1."""
    mean: tuple[Finite, Finite, Finite] = MEAN
    """Mean of the normalised red, green and blue, for pixels from 0 to 1."""
    std: tuple[PositiveAmount, PositiveAmount, PositiveAmount] = STD
    """Standard deviation of the normalised red, green and blue, for pixels from 0 to 1."""
    interpolation: Filter = "bilinear"
    """Filter of the resize of training and validation images: "bilinear" or "bicubic", both antialiased as in Pillow,
    or "area", OpenCV's INTER_AREA."""
    val_interpolation: Filter | None = None
    """Filter of the resize of validation images; None: `interpolation`."""
    samples_per_epoch: PositiveInt | None = None
    """Images of a shorter epoch, in whole batches; the epochs go through all images before any image comes twice.
    None: the whole training set."""
    repeated_augmentation: PositiveInt = 1
    """Copies of each image in an epoch, each with its own crop and augmentation. The number of samples in an epoch does
    not change, so with n copies an epoch has 1/n of the images. timm's recipes A1 and A2 have 3, torchvision's 4. Needs
    `shuffle=global` and no `samples_per_epoch`."""
    shuffle: Literal["global", "block"] = "global"
    """"global": any order of all images. "block": 8 to 16 neighbours of the index stay together, for shards on slow
    storage."""
    reads_in_flight: PositiveInt | Auto = "auto"
    """Requests that each worker has in flight, at least 1. "auto" follows the latency of the storage."""
    region_decode: bool = True
    """Decode only the crop of a JPEG if the format allows it. False: decode the whole image and cut out the crop, as
    other loaders do; the pixels are the same."""
    resize_on: Literal["auto", "device", "worker"] = "auto"
    """Where crops are resized: "device", "worker", or "auto": the device if it is a GPU, else the worker."""
    copies: Literal["ahead", "pinned", "pageable"] = "ahead"
    """How a batch is copied to the GPU: "ahead": from pinned memory, on a side stream, one batch early; "pinned": from
    pinned memory within the step; "pageable": from ordinary memory, and the host waits."""
    max_crop_pixels: PositiveInt = 4194304
    """A crop of more pixels is reduced by a whole factor."""
    max_pixels: PositiveInt = 100_000_000
    """An image of more pixels is a bad sample, of whatever format, because its decoding takes gigabytes. At most
    536870912 pixels are decoded in any case."""
    exif_rotation: bool = False
    """Rotate images by their EXIF data."""
    on_bad_sample: Literal["skip", "raise"] = "skip"
    """A file that cannot be decoded: "skip" replaces the sample by another; "raise" stops the run."""
    max_bad_fraction: Amount = 0.001
    """With "skip", a run stops with the names of bad files if they are more than this share of the data set. Three bad
    files are always allowed, except with 0."""
    read_timeout: PositiveAmount = 60.0
    """Seconds that a read may take; after two such timeouts in a row the run stops. Temporary errors are retried for
    half of these seconds."""
    cache_gb: Amount | None = None
    """Most GB that the samples of each split (train, val) take on the local disk, in `data.cache_dir`, if `data.root`
    is a URL. The first samples of the index that fit are kept, and none is replaced. In any case 5 % of the disk stay
    free. None: all that fits. 0: nothing is kept."""
    added_latency_ms: Amount = 0.0
    """Rehearsal of slow storage: milliseconds added to each request."""
    max_mb_per_second: PositiveAmount | None = None
    """Rehearsal of slow storage: MB/s that each training process may read, all its workers together; None: no limit."""
    seed: NonNegativeInt = 0
    """Order, crops, flips and augmentation are functions of this seed and of the position in the run."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = checked(f"data.{option.name}", getattr(self, option.name), option.name)
            object.__setattr__(self, option.name, value)
        if self.crop_scale[0] > self.crop_scale[1]:
            raise ConfigError(f"data.crop_scale={self.crop_scale} must begin with the smaller share")
        if self.repeated_augmentation > 1 and (self.shuffle == "block" or self.samples_per_epoch is not None):
            other = "data.shuffle=block" if self.shuffle == "block" else "data.samples_per_epoch"
            raise ConfigError(
                f"data.repeated_augmentation={self.repeated_augmentation} does not work with {other}; set "
                "data.shuffle=global and data.samples_per_epoch=null, or data.repeated_augmentation=1"
            )
        parse_policy(self.augment)
        if self.random_shift >= self.image_size:
            raise ConfigError(
                f"data.random_shift={self.random_shift} moves images of {self.image_size} pixels (data.image_size) out "
                "of sight; set fewer pixels"
            )

    def for_processes(self, num: int) -> "LoaderOptions":
        """These options with `batch_size` of each of `num` processes instead of `global_batch_size`. Raises
        ConfigError if the processes cannot share the global batch evenly."""
        if self.global_batch_size is None:
            return self
        size, rest = divmod(self.global_batch_size, num)
        if rest:
            raise ConfigError(
                f"data.global_batch_size={self.global_batch_size} cannot be shared evenly by {num} processes; choose a "
                "multiple of their number, or another number of processes (trainer.devices, trainer.num_nodes)"
            )
        return replace(self, batch_size=size, global_batch_size=None)


def checked(name: str, value: Any, option: str) -> Any:
    """The value, converted, if the loader's option may have it. Raises ConfigError with the name."""
    try:
        strict = isinstance(value, bool) or None  # else true would be the number 1
        return _adapter(option).validate_python(value, strict=strict)
    except ValidationError as error:
        length = f"a list or tuple of {len(get_args(_hints()[option]))} numbers"  # of a tuple
        forms = dict.fromkeys(
            length if each["type"] in _LENGTHS else each["msg"].removeprefix("Input should be ")
            for each in error.errors()
        )
        more = ""
        if (option, value) == ("batch_size", "auto"):
            more = "; auto is for train.py: set the number that it or imagenet-opt tune finds"
        raise ConfigError(f"{name}={value} must be {' or '.join(forms)}{more}") from error


def option_docs() -> dict[str, str]:
    """The docstring of each option, in one line."""
    body: Any = ast.parse(inspect.getsource(LoaderOptions)).body[0]
    names = [getattr(getattr(field, "target", None), "id", None) for field in body.body]
    return {name: " ".join(body.body[i + 1].value.value.split()) for i, name in enumerate(names) if name}


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """Checks an option, and converts it: the lists of YAML to tuples, for example."""
    return TypeAdapter(_hints()[name])


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(LoaderOptions, include_extras=True)
