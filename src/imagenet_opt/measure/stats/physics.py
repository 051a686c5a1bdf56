"""Physical bounds of rates; a rate above a bound was measured wrongly."""

import math
from dataclasses import dataclass

from imagenet_opt.errors import ConfigError

LEAST_CPU_SECONDS_PER_MEGAPIXEL = 5e-4
"""Least CPU time to decode a JPEG: 2,000 megapixels a second on one CPU. libjpeg-turbo decodes about 100 to 300
(libjpeg-turbo.org, performance study), so this bound has a wide margin for faster CPUs and partly decoded pictures."""
MOST_MEMORY_MB_PER_SECOND = 1e6
"""Highest rate from memory to a CPU, 1 TB/s: twice the bandwidth of a server with 12 channels of DDR5."""
SCATTER = 2.0
"""Allowed factor between two measured rates of a storage, since other machines use the storage too."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A rate, and the resources that it used. Unknown values are None and are not checked.

    num_images: images counted within `seconds`. num_made: the part of these images that was prepared within these
    seconds. slack: images prepared earlier that may still count: one batch of each worker. cpus: CPUs or worker
    processes that prepared the images, one image at a time; busy_seconds: time of one of them per image. megapixels:
    size of a whole decoded picture. mb_per_image: MB read per image; mb_per_second: highest rate of the storage.
    """

    num_images: float
    seconds: float
    num_made: float | None = None
    slack: float = 0.0
    cpus: float | None = None
    busy_seconds: float | None = None
    megapixels: float | None = None
    mb_per_image: float | None = None
    mb_per_second: float | None = None

    @property
    def images_per_second(self) -> float:
        return self.num_images / self.seconds


def impossible(claim: Claim) -> str | None:
    """The reason why the rate is impossible; None for a plausible rate."""
    if claim.seconds <= 0:
        return f"{claim.num_images:,.0f} images in {claim.seconds:g} s are not a rate"
    return _not_made(claim) or _too_busy(claim) or _too_many_pixels(claim) or _too_many_bytes(claim)


def check(claim: Claim) -> None:
    """Raises ConfigError for an impossible rate."""
    if reason := impossible(claim):
        raise ConfigError(f"not measured: {reason}; raise --budget or --seconds")


def _not_made(claim: Claim) -> str | None:
    if claim.num_made is None or claim.num_images <= claim.num_made + claim.slack:
        return None
    prepared = f"only {claim.num_made:,.0f} images were prepared in that time"
    return f"{claim.num_images:,.0f} images were counted in {claim.seconds:.3g} s, but {prepared}"


def _too_busy(claim: Claim) -> str | None:
    if claim.cpus is None or claim.busy_seconds is None:
        return None
    needed, available = (claim.num_images - claim.slack) * claim.busy_seconds, claim.cpus * claim.seconds
    if needed <= available:
        return None
    each = f"each image takes {1000 * claim.busy_seconds:.3g} ms of one of {claim.cpus:.0f} workers"
    return f"{claim.images_per_second:,.0f} img/s need {needed:.3g} s of work in {available:.3g} s: {each}"


def _too_many_pixels(claim: Claim) -> str | None:
    if claim.cpus is None or not claim.megapixels:
        return None
    most = claim.cpus / (claim.megapixels * LEAST_CPU_SECONDS_PER_MEGAPIXEL)
    if claim.images_per_second <= most:
        return None
    return f"{claim.images_per_second:,.0f} img/s, but {claim.cpus:.0f} CPUs cannot decode more than {most:,.0f} img/s"


def _too_many_bytes(claim: Claim) -> str | None:
    if claim.mb_per_image is None:
        return None
    of_storage = math.inf if claim.mb_per_second is None else SCATTER * claim.mb_per_second
    rate = claim.images_per_second * claim.mb_per_image
    if rate <= min(of_storage, MOST_MEMORY_MB_PER_SECOND):
        return None
    from_memory = of_storage >= MOST_MEMORY_MB_PER_SECOND
    source = "memory" if from_memory else f"the storage, which reached {claim.mb_per_second:,.3g} MB/s"
    return f"{claim.images_per_second:,.0f} img/s would be {rate:,.0f} MB/s from {source}"
