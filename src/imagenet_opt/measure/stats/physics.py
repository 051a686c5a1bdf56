"""Bounds that no measured rate can exceed; a rate that exceeds one of them was measured wrongly."""

from dataclasses import dataclass

from imagenet_opt.errors import ConfigError

LEAST_CPU_SECONDS_PER_MEGAPIXEL = 5e-4
"""Of a decoded JPEG: 2,000 megapixels a second of one CPU. libjpeg-turbo decodes about 100 to 300 (libjpeg-turbo.org,
performance study), so this bound has a wide margin for faster CPUs and for pictures of which only a part is decoded."""
MOST_MEMORY_MB_PER_SECOND = 1e6
"""1 TB/s, from memory to a CPU: twice what a server with 12 channels of DDR5 has."""
SCATTER = 2.0
"""A rate of a storage may differ so much from an earlier one: others use the storage too."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A rate and what it was made of. What is not known is None, and is not checked.

    num_images: counted within `seconds`. num_made: of these, those that were made within these seconds; the others were
    made before. slack: images that may be counted though they were made before: one batch of each worker. cpus: CPUs or
    worker processes that made the images, one image at a time; busy_seconds: of one of them for an image. megapixels:
    of a whole decoded picture. mb_per_image: read for an image; mb_per_second: the most that the storage gave.
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
        return self.num_images / self.seconds if self.seconds > 0 else float("inf")


def impossible(claim: Claim) -> str | None:
    """Why the rate cannot be true; None where nothing speaks against it."""
    return _not_made(claim) or _too_busy(claim) or _too_many_pixels(claim) or _too_many_bytes(claim)


def check(claim: Claim) -> None:
    """Raises ConfigError for a rate that cannot be true."""
    if reason := impossible(claim):
        raise ConfigError(f"not measured: {reason}; raise --budget or --seconds")


def _not_made(claim: Claim) -> str | None:
    if claim.seconds <= 0:
        return f"{claim.num_images:,.0f} images in {claim.seconds:g} s are no rate"
    if claim.num_made is None or claim.num_images <= claim.num_made + claim.slack:
        return None
    made = f"only {claim.num_made:,.0f} of them were made in that time"
    return f"{claim.num_images:,.0f} images were counted in {claim.seconds:.3g} s, but {made}"


def _too_busy(claim: Claim) -> str | None:
    if claim.cpus is None or claim.busy_seconds is None:
        return None
    needed, there = (claim.num_images - claim.slack) * claim.busy_seconds, claim.cpus * claim.seconds
    if needed <= there:
        return None
    each = f"each takes {1000 * claim.busy_seconds:.3g} ms of one of {claim.cpus:.0f} workers"
    return f"{claim.images_per_second:,.0f} img/s need {needed:.3g} s of work in {there:.3g} s, as {each}"


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
    most = MOST_MEMORY_MB_PER_SECOND
    if claim.mb_per_second is not None:
        most = min(most, SCATTER * claim.mb_per_second)
    rate = claim.images_per_second * claim.mb_per_image
    if rate <= most:
        return None
    source = "memory" if most == MOST_MEMORY_MB_PER_SECOND else f"the storage, which gave {claim.mb_per_second:,.3g}"
    return f"{claim.images_per_second:,.0f} img/s would be {rate:,.0f} MB/s from {source}"
