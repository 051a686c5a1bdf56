"""Options of the loader."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from imagenet_opt.data.transforms.augment_policy import SMALLEST_IMAGE, parse_policy
from imagenet_opt.data.transforms.image_format import MEAN, RGB, STD
from imagenet_opt.errors import ConfigError

Auto = Literal["auto"]
CHOICES = {
    "train_crop": ("random", "center"),
    "resize_on": ("auto", "device", "worker"),
    "shuffle": ("global", "block"),
    "on_bad_sample": ("skip", "raise"),
    "interpolation": ("bilinear", "bicubic", "area"),
    "copies": ("ahead", "pinned", "pageable"),
    "random_erasing_mode": ("const", "pixel"),
}
LEAST = {
    "batch_size": 1,
    "global_batch_size": 1,
    "image_size": 1,
    "val_image_size": 1,
    "samples_per_epoch": 1,
    "repeated_augmentation": 1,
    "max_crop_pixels": 1,
    "num_workers": 0,
    "prefetch_factor": 1,
    "reads_in_flight": 1,
}


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """The keys of conf/loading.yaml below `data.`, with their defaults; their meaning is documented only here.

    Raises ConfigError, with the key, for a value out of range.
    """

    batch_size: int = 256
    """Images per step of each process, at least 1. The command line also takes `auto`: the largest batch that fits
    into the device's memory, which a run measures before it begins (docs/tuning.md). Workers hand over a batch of more
    than 512 images in parts, and a batch of validation has at most 512."""
    global_batch_size: int | None = None
    """Images per step of all processes together, in the place of `batch_size`: each process has an equal share. None:
    `batch_size` x processes. With more images than the device holds at once, set `model.micro_batch_size`."""
    image_size: int = 224
    """Pixels of a side of the square training images."""
    num_workers: int | Auto = "auto"
    """Loader processes of each training process; 0 loads in the training process. "auto": one per usable CPU. A larger
    number than CPUs or memory allow is lowered, and one line says so."""
    prefetch_factor: int | Auto = "auto"
    """Batches, or parts of large batches, that each worker keeps ready, at least 1. "auto": 4. Lowered where the
    memory is too small."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest share of an image's area that a training crop takes, above 0 and at most 1."""
    train_crop: str = "random"
    """"random": a random crop of each image, mirrored half of the time. "center": the validation's crop, unmirrored."""
    augment: str | None = None
    """Changes each training image on the device, before normalising. "rand-m7-mstd0.5-inc1" and similar: timm's
    RandAugment, with the sections m, n, p, mstd, mmax and inc. "trivialaugment": torchvision's TrivialAugmentWide.
    None: nothing. docs/pipeline.md lists the differences from timm and torchvision. Unproven on a GPU."""
    color_jitter: float = 0.0
    """Brightness, contrast and saturation of each training image change by factors from 1 - this number to 1 + this
    number, in any order, after `augment`. timm uses 0.4, and only where there is no RandAugment. 0: none."""
    random_erasing: float = 0.0
    """Share of the training images, 0 to 1, of which a box of 1/50 to 1/3 of the area is erased, after normalising."""
    random_erasing_mode: str = "const"
    """What is in an erased box: "const": the mean colour; "pixel": normally distributed noise."""
    val_image_size: int | None = None
    """Pixels of a side of the square validation images; None: `image_size`."""
    val_crop_ratio: float = 0.875
    """Side of the centred validation crop, as a share of the image's shorter side; above 0 and at most 1."""
    mean: RGB = MEAN
    """Mean of the normalised red, green and blue, for pixels from 0 to 1."""
    std: RGB = STD
    """Their standard deviation."""
    interpolation: str = "bilinear"
    """Filter of the resize of training and validation images: "bilinear" or "bicubic", both antialiased as in Pillow,
    or "area", OpenCV's INTER_AREA. "bicubic" and "area" are unproven on a GPU."""
    val_interpolation: str | None = None
    """The same for validation images alone; None: `interpolation`."""
    samples_per_epoch: int | None = None
    """Images of a shorter epoch, in whole batches; the epochs go through all images before any image comes twice.
    None: the whole training set."""
    repeated_augmentation: int = 1
    """How often each image of an epoch comes, with other crops and augmentation each time; an epoch has as many samples
    as without, so it sees only one of that many images. timm's recipes A1 and A2 have 3, torchvision's 4. Only with
    `shuffle=global` and without `samples_per_epoch`."""
    shuffle: str = "global"
    """"global": any order of all images. "block": 8 to 16 neighbours of the index stay together, for shards on slow
    storage."""
    reads_in_flight: int | Auto = "auto"
    """Requests that each worker has under way at a time, at least 1. "auto" follows the storage's latency."""
    region_decode: bool = True
    """Decode only the crop of a JPEG where the format allows it. False: decode the whole image and cut the crop out, as
    other loaders do; the pixels are the same."""
    resize_on: str = "auto"
    """Where crops are resized: "device", "worker", or "auto": the device when it is a GPU, else the worker."""
    copies: str = "ahead"
    """How a batch gets to the GPU: "ahead": from pinned memory, on a side stream, one batch early; "pinned": from
    pinned memory within the step; "pageable": from ordinary memory, and the host waits."""
    max_crop_pixels: int = 4194304
    """A crop of more pixels is decoded smaller by a whole factor."""
    exif_rotation: bool = False
    """Turn images as their EXIF data says."""
    on_bad_sample: str = "skip"
    """A file that cannot be decoded: "skip" replaces the sample by another; "raise" stops the run."""
    max_bad_fraction: float = 0.001
    """With "skip", a run stops when more than this share of the data set is bad, and names the files. Three bad files
    are always allowed, except with 0."""
    read_timeout: float = 60.0
    """Seconds without an answer, twice in a row, before the run stops; half as long for errors that may pass."""
    added_latency_ms: float = 0.0
    """Rehearsal of slow storage: milliseconds added to each request."""
    max_mb_per_second: float | None = None
    """Rehearsal of slow storage: MB/s that each process may read; None: as fast as the storage is."""
    seed: int = 0
    """Order, crops, flips and augmentation are functions of this seed and of the place in the run."""

    def __post_init__(self) -> None:
        for name, low in LEAST.items():
            self._check_whole(name, low)
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"data.{name}={value} must be one of {', '.join(choices)}")
        if (value := self.val_interpolation) not in (None, *CHOICES["interpolation"]):
            raise ConfigError(
                f"data.val_interpolation={value} must be null or one of {', '.join(CHOICES['interpolation'])}"
            )
        for name in ("region_decode", "exif_rotation"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"data.{name}={value} must be true or false")
        if not _is_range(self.crop_scale):
            raise ConfigError(f"data.crop_scale={self.crop_scale} must be two shares of the area, such as [0.08, 1.0]")
        for name in ("mean", "std"):
            if not _is_rgb(value := getattr(self, name)) or (name == "std" and min(value) <= 0):
                above = " above 0" if name == "std" else ""
                raise ConfigError(f"data.{name}={value} must be three numbers{above}, for red, green and blue")
        for name in ("crop_scale", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # YAML has lists only
        if not _is_range((self.val_crop_ratio, 1)):
            raise ConfigError(f"data.val_crop_ratio={self.val_crop_ratio} must be above 0 and at most 1")
        self._check_augmentation()
        for name in ("max_bad_fraction", "added_latency_ms", "color_jitter"):
            if not _is_number(value := getattr(self, name)) or value < 0:
                raise ConfigError(f"data.{name}={value} must be a number of at least 0")
        for name, optional in (("read_timeout", False), ("max_mb_per_second", True)):
            value = getattr(self, name)
            if not (optional and value is None) and (not _is_number(value) or value <= 0):
                raise ConfigError(f"data.{name}={value} must be a number above 0{', or null' * optional}")

    def for_processes(self, num: int) -> "LoaderOptions":
        """These options with `batch_size` of each of `num` processes in the place of `global_batch_size`. Raises
        ConfigError if they cannot share it evenly."""
        if self.global_batch_size is None:
            return self
        return replace(self, batch_size=share_of(self.global_batch_size, num), global_batch_size=None)

    def _check_augmentation(self) -> None:
        if self.repeated_augmentation > 1 and (self.shuffle == "block" or self.samples_per_epoch is not None):
            other = "data.shuffle=block" if self.shuffle == "block" else "data.samples_per_epoch"
            raise ConfigError(
                f"data.repeated_augmentation={self.repeated_augmentation} does not work with {other}; set "
                "data.shuffle=global and data.samples_per_epoch=null, or data.repeated_augmentation=1"
            )
        if parse_policy(self.augment) is not None and self.image_size < SMALLEST_IMAGE:
            raise ConfigError(
                f"data.image_size={self.image_size} is smaller than the {SMALLEST_IMAGE} pixels that data.augment="
                f"{self.augment} needs (its sharpness looks at 3 x 3 pixels); set a larger one or data.augment=null"
            )
        if not _is_number(share := self.random_erasing) or not 0 <= share <= 1:
            raise ConfigError(f"data.random_erasing={share} must be a probability from 0 to 1")

    def _check_whole(self, name: str, low: int) -> None:
        value, autos = getattr(self, name), ("num_workers", "prefetch_factor", "reads_in_flight")
        nulls = ("global_batch_size", "val_image_size", "samples_per_epoch")
        if (value == "auto" and name in autos) or (value is None and name in nulls):
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            or_auto = ", or auto" if name in autos else ""
            if (name, value) == ("batch_size", "auto"):
                or_auto = "; auto is for train.py and imagenet-opt tune: set the number that they find"
            raise ConfigError(f"data.{name}={value} must be a whole number of at least {low}{or_auto}")


def share_of(global_batch_size: int, num_processes: int) -> int:
    """Images per step of each process. Raises ConfigError if the processes cannot share them evenly."""
    size, rest = divmod(global_batch_size, num_processes)
    if rest:
        raise ConfigError(
            f"data.global_batch_size={global_batch_size} cannot be shared evenly by {num_processes} processes; choose "
            "a multiple of their number, or another number (trainer.devices, trainer.num_nodes)"
        )
    return size


def _is_range(limits: Any) -> bool:
    """Whether these are two numbers with 0 < low <= high <= 1."""
    if not isinstance(limits, list | tuple) or len(limits) != 2:
        return False
    return all(_is_number(limit) for limit in limits) and 0 < limits[0] <= limits[1] <= 1


def _is_rgb(values: Any) -> bool:
    return isinstance(values, list | tuple) and len(values) == 3 and all(map(_is_number, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
