"""Reads the batches of one process of the study `read`. The module imports little, because each process imports it."""

from collections.abc import Sequence
from functools import partial

from imagenet_opt.data.storage.read_ahead import ReadAhead
from imagenet_opt.data.storage.store import Indices, Store
from imagenet_opt.measure.storage.parallel_reads import BatchRead, timed


def read_batches(
    store: Store, batches: Sequence[Indices], *, reads_in_flight: int, timeout_seconds: float
) -> list[BatchRead]:
    """Read batches as a worker does, and request further batches ahead; decode nothing."""
    reader = ReadAhead(store, reads_in_flight=reads_in_flight, timeout_seconds=timeout_seconds)
    places = [((0, step), batch) for step, batch in enumerate(batches)]

    def read_batch(step: int) -> list[bytes | Exception]:
        following = map(places.__getitem__, range(step + 1, len(places)))
        return [*reader.read(*places[step], following=following).samples]

    return [timed(partial(read_batch, step)) for step in range(len(places))]
