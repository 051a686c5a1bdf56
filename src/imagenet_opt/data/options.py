"""How samples become batches: the keys of conf/loading.yaml, checked."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from imagenet_opt.errors import ConfigError

Auto = Literal["auto"]
CHOICES = {
    "resize_on": ("auto", "device", "worker"),
    "shuffle": ("global", "block"),
    "on_bad_sample": ("skip", "raise"),
    "copies": ("ahead", "pinned", "pageable"),
}
LEAST = {
    "batch_size": 1,
    "image_size": 1,
    "val_image_size": 1,
    "samples_per_epoch": 1,
    "max_crop_pixels": 1,
    "num_workers": 0,
    "prefetch_factor": 1,
    "reads_in_flight": 1,
}


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Sizes in pixels; `batch_size` per process. What they are unless said otherwise is in conf/loading.yaml.

    num_workers, prefetch_factor, reads_in_flight (per worker): "auto" for what machine and storage can do.
    crop_scale: share of an image's area that a training crop may take. val_image_size: None for `image_size`.
    samples_per_epoch: None for the whole training set. shuffle: "block" keeps 8 to 16 neighbours of the index together.
    resize_on: "auto" is the device when that is a GPU, else the worker. max_crop_pixels: larger crops come smaller.
    region_decode: where a JPEG allows it, decode the crop and not the whole picture; the bits are the same.
    copies: to a GPU, see DevicePrefetcher.
    on_bad_sample: "skip" up to max_bad_fraction of the data set. read_timeout: seconds for an
    answer, twice; half of it for errors that may pass.
    added_latency_ms, max_mb_per_second: rehearse slow storage, see SlowStore; 0 and None for the storage as it is.
    """

    batch_size: int
    image_size: int
    num_workers: int | Auto
    prefetch_factor: int | Auto
    crop_scale: tuple[float, float]
    val_image_size: int | None
    val_crop_ratio: float
    samples_per_epoch: int | None
    shuffle: str
    reads_in_flight: int | Auto
    region_decode: bool
    resize_on: str
    max_crop_pixels: int
    copies: str
    exif_rotation: bool
    on_bad_sample: str
    max_bad_fraction: float
    read_timeout: float
    added_latency_ms: float
    max_mb_per_second: float | None
    seed: int

    def __post_init__(self) -> None:
        for name, low in LEAST.items():
            self._check_whole(name, low)
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"data.{name}={value} must be one of {', '.join(choices)}")
        for name in ("region_decode", "exif_rotation"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"data.{name}={value} must be true or false")
        if not _is_range(self.crop_scale):
            raise ConfigError(f"data.crop_scale={self.crop_scale} must be two shares of the area, such as [0.08, 1.0]")
        object.__setattr__(self, "crop_scale", tuple(self.crop_scale))  # YAML has lists only
        if not _is_range((self.val_crop_ratio, 1)):
            raise ConfigError(f"data.val_crop_ratio={self.val_crop_ratio} must be above 0 and at most 1")
        for name in ("max_bad_fraction", "added_latency_ms"):
            if not _is_number(value := getattr(self, name)) or value < 0:
                raise ConfigError(f"data.{name}={value} must be a number of at least 0")
        for name, optional in (("read_timeout", False), ("max_mb_per_second", True)):
            value = getattr(self, name)
            if not (optional and value is None) and (not _is_number(value) or value <= 0):
                raise ConfigError(f"data.{name}={value} must be a number above 0{', or null' * optional}")

    def _check_whole(self, name: str, low: int) -> None:
        value, autos = getattr(self, name), ("num_workers", "prefetch_factor", "reads_in_flight")
        if (value == "auto" and name in autos) or (value is None and name in ("val_image_size", "samples_per_epoch")):
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            or_auto = ", or auto" if name in autos else ""
            if (name, value) == ("batch_size", "auto"):
                or_auto = "; auto is for train.py and imagenet-opt tune: set the number that they find"
            raise ConfigError(f"data.{name}={value} must be a whole number of at least {low}{or_auto}")


def _is_range(limits: Any) -> bool:
    """Whether these are two numbers with 0 < low <= high <= 1."""
    if not isinstance(limits, list | tuple) or len(limits) != 2:
        return False
    return all(_is_number(limit) for limit in limits) and 0 < limits[0] <= limits[1] <= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
