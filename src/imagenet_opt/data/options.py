"""Options of the loader."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from imagenet_opt.data.transforms.augment_policy import SMALLEST_IMAGE, parse_policy
from imagenet_opt.data.transforms.image_format import MEAN, RGB, STD
from imagenet_opt.errors import ConfigError

Auto = Literal["auto"]
_FILTERS = ("bilinear", "bicubic", "area")
_CHOICES = {
    "train_crop": ("random", "center"),
    "resize_on": ("auto", "device", "worker"),
    "shuffle": ("global", "block"),
    "on_bad_sample": ("skip", "raise"),
    "interpolation": _FILTERS,
    "val_interpolation": (None, *_FILTERS),
    "copies": ("ahead", "pinned", "pageable", "registered"),
}
_LEAST = {"num_workers": 0, "random_shift": 0, "seed": 0} | dict.fromkeys(
    (
        *("batch_size", "global_batch_size", "image_size", "val_image_size", "samples_per_epoch"),
        *("repeated_augmentation", "max_crop_pixels", "max_pixels", "prefetch_factor", "reads_in_flight"),
    ),
    1,
)
_AUTO = ("num_workers", "prefetch_factor", "reads_in_flight")
_NULL = ("global_batch_size", "val_image_size", "samples_per_epoch")


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """The keys of conf/loading.yaml below `data.`, with their defaults and their only documentation.

    Raises ConfigError, with the key, for a value out of range.
    """

    batch_size: int = 256
    """Images per step of each process, at least 1. The command line also takes `auto`: the largest batch that fits
    into the device's memory, which a run measures before it begins (docs/tuning.md). Workers hand over a batch of more
    than 512 images in parts, and a batch of validation has at most 512."""
    global_batch_size: int | None = None
    """Images per step of all processes together, instead of `batch_size`: each process has an equal share. None:
    `batch_size` x processes. With more images than the device holds at once, set `model.micro_batch_size`."""
    image_size: int = 224
    """Pixels of a side of the square training images."""
    num_workers: int | Auto = "auto"
    """Loader processes of each training process; 0 loads in the training process. "auto": one per usable CPU. A number
    that is too large for the CPUs or the memory is lowered, with one log line."""
    prefetch_factor: int | Auto = "auto"
    """Batches, or parts of large batches, that each worker keeps ready, at least 1. "auto": 4. Lowered if the memory
    is too small."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest share of an image's area that a training crop takes, above 0 and at most 1."""
    train_crop: str = "random"
    """"random": a random crop of each image; half of the crops are mirrored. "center": the crop of validation."""
    random_shift: int = 0
    """Each training image moves by up to this number of whole pixels along each axis, on the device, before `augment`:
    as padding with the colour `mean` and then a random crop, usual for small images. 0: no image moves."""
    augment: str | None = None
    """Changes each training image on the device, before normalising. "rand-m7-mstd0.5-inc1" and similar: timm's
    RandAugment, with the sections m, n, p, mstd, mmax and inc. "trivialaugment": torchvision's TrivialAugmentWide.
    None: no augmentation. docs/pipeline.md lists the differences from timm and torchvision. Unproven on a GPU."""
    random_erasing: float = 0.0
    """Share of the training images, 0 to 1, that lose a box of 1/50 to 1/3 of their area: it gets the mean colour."""
    val_image_size: int | None = None
    """Pixels of a side of the square validation images; None: `image_size`."""
    val_crop_ratio: float = 0.875
    """Side of the centred validation crop, as a share of the image's shorter side; above 0 and at most 1."""
    mean: RGB = MEAN
    """Mean of the normalised red, green and blue, for pixels from 0 to 1."""
    std: RGB = STD
    """Standard deviation of the normalised red, green and blue, for pixels from 0 to 1."""
    interpolation: str = "bilinear"
    """Filter of the resize of training and validation images: "bilinear" or "bicubic", both antialiased as in Pillow,
    or "area", OpenCV's INTER_AREA."""
    val_interpolation: str | None = None
    """Filter of the resize of validation images; None: `interpolation`."""
    samples_per_epoch: int | None = None
    """Images of a shorter epoch, in whole batches; the epochs go through all images before any image comes twice.
    None: the whole training set."""
    repeated_augmentation: int = 1
    """Copies of each image in an epoch, each with its own crop and augmentation. The number of samples in an epoch does
    not change, so with n copies an epoch has 1/n of the images. timm's recipes A1 and A2 have 3, torchvision's 4. Needs
    `shuffle=global` and no `samples_per_epoch`."""
    shuffle: str = "global"
    """"global": any order of all images. "block": 8 to 16 neighbours of the index stay together, for shards on slow
    storage."""
    reads_in_flight: int | Auto = "auto"
    """Requests that each worker has in flight, at least 1. "auto" follows the latency of the storage."""
    region_decode: bool = True
    """Decode only the crop of a JPEG if the format allows it. False: decode the whole image and cut out the crop, as
    other loaders do; the pixels are the same."""
    resize_on: str = "auto"
    """Where crops are resized: "device", "worker", or "auto": the device if it is a GPU, else the worker."""
    copies: str = "ahead"
    """How a batch is copied to the GPU: "ahead": from pinned memory, on a side stream, one batch early; "pinned": from
    pinned memory within the step; "pageable": from ordinary memory, and the host waits; "registered": as "ahead", but
    from the workers' shared memory, which is page-locked once. The speed of "registered" on a GPU was not measured."""
    max_crop_pixels: int = 4194304
    """A crop of more pixels is reduced by a whole factor."""
    max_pixels: int = 100_000_000
    """An image of more pixels is a bad sample, of whatever format, because its decoding takes gigabytes. At most
    536870912 pixels are decoded in any case."""
    exif_rotation: bool = False
    """Rotate images by their EXIF data."""
    on_bad_sample: str = "skip"
    """A file that cannot be decoded: "skip" replaces the sample by another; "raise" stops the run."""
    max_bad_fraction: float = 0.001
    """With "skip", a run stops with the names of bad files if they are more than this share of the data set. Three bad
    files are always allowed, except with 0."""
    read_timeout: float = 60.0
    """Seconds that a read may take; after two such timeouts in a row the run stops. Temporary errors are retried for
    half of these seconds."""
    cache_gb: float | None = None
    """Most GB that the samples of each split (train, val) take on the local disk, in `data.cache_dir`, if `data.root`
    is a URL. The first samples of the index that fit are kept, and none is replaced. In any case 5 % of the disk stay
    free. None: all that fits. 0: nothing is kept."""
    added_latency_ms: float = 0.0
    """Rehearsal of slow storage: milliseconds added to each request."""
    max_mb_per_second: float | None = None
    """Rehearsal of slow storage: MB/s that each training process may read, all its workers together; None: no limit."""
    seed: int = 0
    """Order, crops, flips and augmentation are functions of this seed and of the position in the run."""

    def __post_init__(self) -> None:
        for name in _LEAST:
            self._check_whole_number(name)
        for name, choices in _CHOICES.items():
            words = f"{'null or ' * (None in choices)}one of {', '.join(filter(None, choices))}"
            self._check(name, getattr(self, name) in choices, words)
        for name in ("region_decode", "exif_rotation"):
            self._check(name, isinstance(getattr(self, name), bool), "true or false")
        self._check("crop_scale", _is_range(self.crop_scale), "two shares of the area, such as [0.08, 1.0]")
        self._check("mean", _is_rgb(self.mean), "three numbers, for red, green and blue")
        is_std = _is_rgb(self.std) and min(self.std) > 0
        self._check("std", is_std, "three numbers above 0, for red, green and blue")
        for name in ("crop_scale", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # YAML has lists only
        self._check("val_crop_ratio", _is_range((self.val_crop_ratio, 1)), "above 0 and at most 1")
        self._check("random_erasing", _is_number(self.random_erasing, most=1), "a probability from 0 to 1")
        for name in ("max_bad_fraction", "added_latency_ms"):
            self._check(name, _is_number(getattr(self, name)), "a number of at least 0")
        self._check("read_timeout", _is_number(self.read_timeout) and self.read_timeout > 0, "a number above 0")
        self._check("cache_gb", self.cache_gb is None or _is_number(self.cache_gb), "a number of at least 0, or null")
        rate = self.max_mb_per_second
        self._check("max_mb_per_second", rate is None or (_is_number(rate) and rate > 0), "a number above 0, or null")
        self._check_augmentation()

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

    def _check(self, name: str, is_valid: bool, expected: str) -> None:
        if not is_valid:
            raise ConfigError(f"data.{name}={getattr(self, name)} must be {expected}")

    def _check_whole_number(self, name: str) -> None:
        value, least = getattr(self, name), _LEAST[name]
        if (value == "auto" and name in _AUTO) or (value is None and name in _NULL):
            return
        more = ", or auto" if name in _AUTO else ""
        if (name, value) == ("batch_size", "auto"):
            more = "; auto is for train.py: set the number that it or imagenet-opt tune finds"
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        self._check(name, is_whole and value >= least, f"a whole number of at least {least}{more}")

    def _check_augmentation(self) -> None:
        if self.repeated_augmentation > 1 and (self.shuffle == "block" or self.samples_per_epoch is not None):
            other = "data.shuffle=block" if self.shuffle == "block" else "data.samples_per_epoch"
            raise ConfigError(
                f"data.repeated_augmentation={self.repeated_augmentation} does not work with {other}; set "
                "data.shuffle=global and data.samples_per_epoch=null, or data.repeated_augmentation=1"
            )
        if self.random_shift >= self.image_size:
            raise ConfigError(
                f"data.random_shift={self.random_shift} moves images of {self.image_size} pixels (data.image_size) out "
                "of sight; set fewer pixels"
            )
        if parse_policy(self.augment) is not None and self.image_size < SMALLEST_IMAGE:
            raise ConfigError(
                f"data.image_size={self.image_size} is smaller than the {SMALLEST_IMAGE} pixels that data.augment="
                f"{self.augment} needs (its sharpness filter has 3 x 3 pixels); set a larger size or data.augment=null"
            )


def _is_range(limits: Any) -> bool:
    """Whether these are two numbers with 0 < low <= high <= 1."""
    if not isinstance(limits, list | tuple) or len(limits) != 2:
        return False
    return all(map(_is_number, limits)) and 0 < limits[0] <= limits[1] <= 1


def _is_rgb(values: Any) -> bool:
    """Whether these are three numbers of any sign."""
    return isinstance(values, list | tuple) and len(values) == 3 and all(_is_number(x, least=-math.inf) for x in values)


def _is_number(value: Any, least: float = 0, most: float = math.inf) -> bool:
    is_finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return is_finite and least <= value <= most
