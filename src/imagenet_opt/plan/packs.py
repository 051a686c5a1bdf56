"""Estimates the gain of packing the data of a run whose loader is the limit."""

from collections.abc import Mapping
from typing import NamedTuple

from omegaconf import DictConfig

from imagenet_opt.pack.forecast import forecast
from imagenet_opt.pack.plan import PRESETS
from imagenet_opt.plan.plan import LoaderRate, make_plan
from imagenet_opt.probe.testbed import Testbed

_SECONDS = 1.0
"""Seconds for reading images into memory."""


class PackedRun(NamedTuple):
    """A run with packed data. option: for `imagenet-opt pack`. gigabytes: 10^9 bytes of all packed training images.
    speedup: of the loader, as in Forecast. gpu_hours: duration of the run on one GPU."""

    option: str
    gigabytes: float
    speedup: float
    gpu_hours: float


def packed_runs(
    config: DictConfig,
    sizes: tuple[int, int, int],
    rate: float | None,
    loader_rates: Mapping[int, LoaderRate],
    cached_shares: tuple[float, float],
) -> list[PackedRun]:
    """The run with the data packed by each of PRESETS; arguments as for `make_plan`.

    Reads some images, packs them in memory, and decodes originals and packed images. Empty for packed data, whose
    originals are unknown, and for images that cannot be packed.
    """
    testbed = Testbed(config)
    if testbed.samples.is_packed:
        return []
    testbed.samples.warm(_SECONDS)
    encoded, runs = testbed.samples.encoded, []
    for width, options in PRESETS.items():
        if (expected := forecast(testbed, options)) is None:
            continue
        faster = {size: loader_rate.packed(expected.speedup.ratio) for size, loader_rate in loader_rates.items()}
        plan = make_plan(config.copy(), sizes, rate=rate, loader_rates=faster, cached_shares=cached_shares)
        gigabytes = sizes[0] * expected.bytes_ratio * sum(map(len, encoded)) / len(encoded) / 1e9
        runs.append(PackedRun(f"for={width}", gigabytes, expected.speedup.ratio, plan.gpu_hours))
    return runs
