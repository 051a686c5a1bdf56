"""One turn of a loader alone: start, warm-up, then a timed window in which nothing is done with the batches."""

import time
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True)
class Turn:
    """first_batch_seconds: from making the loader to its first batch. stages: what the loader tells of the window.
    num_made: images whose batches say that they were made within the window; None where batches say nothing."""

    num_images: int
    seconds: float
    first_batch_seconds: float
    stages: dict[str, float]
    num_made: int | None = None

    @property
    def images_per_second(self) -> float:
        return self.num_images / self.seconds


def take_turn(
    make_loader: Callable[[], Iterable[Sized]],
    *,
    num_warmup: int,
    num_batches: int,
    check: Callable[[Any], None] = lambda batch: None,
    settle: Callable[[], None] = lambda: None,
) -> Turn:
    """Make a loader, discard its first `num_warmup` batches, then time the next `num_batches`.

    A batch's length is its number of images. check: called with the first batch. settle: waits for what the device
    still does. A loader with a method `drain` is asked for its stages. Raises ValueError where batches run out.
    """
    began = time.perf_counter()
    loader = make_loader()
    batches = iter(loader)
    if (first := next(batches, None)) is None:
        raise ValueError("the loader gave no batch")
    settle()
    first_batch_seconds = time.perf_counter() - began
    check(first)
    del first
    warmed_up = 1 + sum(1 for _ in islice(batches, num_warmup - 1))
    drain: Callable[[], dict[str, float]] = getattr(loader, "drain", dict)
    drain()
    settle()
    started = time.perf_counter()
    sizes: list[int] = []
    fresh: list[int] = []
    tells = True
    for batch in islice(batches, num_batches):
        made_at = getattr(getattr(batch, "making", None), "made_at", None)
        tells &= made_at is not None
        sizes.append(len(batch))
        fresh.append(len(batch) if made_at is not None and made_at >= started else 0)
    settle()
    seconds = time.perf_counter() - started
    if len(sizes) < num_batches:
        raise ValueError(f"the loader ended after {warmed_up + len(sizes)} of {num_warmup + num_batches} batches")
    return Turn(sum(sizes), seconds, first_batch_seconds, drain(), sum(fresh) if tells else None)
