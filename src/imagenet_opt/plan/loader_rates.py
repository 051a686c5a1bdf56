"""Measures how fast this machine's loader delivers the images of each phase of a run."""

from collections.abc import Callable, Iterable

from omegaconf import DictConfig

from imagenet_opt.config.build import set_size
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span

SECONDS = 5.0
"""Duration of a measurement, for each image size."""
_LONGEST_SECONDS = 60.0
_BATCH = 256
"""Largest batch of a measurement; a few batches of each worker must fit into SECONDS."""


def measure_loader_rates(
    config: DictConfig, sizes: Iterable[int], announce: Callable[[str], None]
) -> tuple[dict[int, float], int]:
    """Images/s of the loader alone by image size, with files that are not in memory, and the number of loader workers.

    announce: called with each measurement's description. Raises ConfigError if the data is too small to measure.
    """
    rates, num_workers = {}, 0
    for size in sizes:
        announce(f"the loader at {size} px")
        at_size = config.copy()
        set_size(at_size, size)
        testbed = Testbed(at_size)
        batch_size = min(_BATCH, testbed.loading.batch_size)
        index = testbed.samples.listed(testbed.samples.cold_rows())
        measured = testbed.load(index, Span(SECONDS, longest=_LONGEST_SECONDS), cold=True, batch_size=batch_size)
        rates[size], num_workers = measured.images_per_second, int(measured.facts["num_workers"])
    return rates, num_workers
