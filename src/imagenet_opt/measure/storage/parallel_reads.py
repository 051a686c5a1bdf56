"""Reads batches in several processes at once, as the workers of a loader do, without decoding."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from threading import BrokenBarrierError
from typing import Any, NamedTuple

from imagenet_opt.measure.stats import physics
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.processes import pool

_START_SECONDS = 60.0


class BatchRead(NamedTuple):
    """One batch, with times in seconds of the machine's monotonic clock, which all processes share.

    num_files: number of files read. num_unread: number of files that could not be read; reason: error of the first.
    """

    began: float
    ended: float
    num_files: int
    num_bytes: int
    num_unread: int = 0
    reason: str = ""


Share = Callable[[], list[BatchRead]]
"""A function that reads all batches of one process."""


@dataclass(frozen=True)
class ReadPass:
    """Totals of all processes, from the first request to the last answer.

    num_unread: further files, which could not be read. is_cold: whether the kernel confirms that no file was in memory.
    """

    seconds: float
    num_batches: int
    num_files: int
    num_bytes: int
    num_unread: int = 0
    is_cold: bool = False

    @property
    def seconds_per_batch(self) -> float:
        return self.seconds / self.num_batches

    @property
    def megabytes_per_second(self) -> float:
        return self.num_bytes / 1e6 / self.seconds

    @property
    def files_per_second(self) -> float:
        return self.num_files / self.seconds


def sum_up(batches: Sequence[BatchRead]) -> ReadPass:
    """The totals of all batches. Raises TurnFailed if no file was read."""
    num_files, num_bytes = sum(batch.num_files for batch in batches), sum(batch.num_bytes for batch in batches)
    if not num_files:
        raise TurnFailed(next((batch.reason for batch in batches if batch.reason), "no batch was read"))
    seconds = max(batch.ended for batch in batches) - min(batch.began for batch in batches)
    num_unread = sum(batch.num_unread for batch in batches)
    return ReadPass(max(seconds, 1e-9), len(batches), num_files, num_bytes, num_unread)


def checked(reads: ReadPass) -> ReadPass:
    """Returns `reads`. Raises TurnFailed for an impossible rate."""
    mb_per_image = reads.num_bytes / reads.num_files / 1e6
    claim = physics.Claim(num_images=reads.num_files, seconds=reads.seconds, mb_per_image=mb_per_image)
    if reason := physics.impossible(claim):
        raise TurnFailed(f"not measured: {reason}")
    return reads


def read_shares(shares: Sequence[Share], context: BaseContext) -> ReadPass:
    """Read each share in its own process of `context`, as a loader's workers are; all start at the same time.

    On Ctrl-C, which the terminal sends to all processes, only this process reacts, and ends the others. Raises the
    errors of a share; TurnFailed if a process dies.
    """
    begin = context.Barrier(len(shares))  # also ensures that no process takes two shares
    try:
        with pool(len(shares), _inherit, (shares, begin), context=context) as processes:
            return sum_up([batch for batches in processes.map(_read, range(len(shares))) for batch in batches])
    except (BrokenProcessPool, BrokenBarrierError) as error:
        raise TurnFailed("a reading process was killed, perhaps because memory ran out") from error


_inherited: tuple[Sequence[Share], Any] = ((), None)


def _inherit(shares: Sequence[Share], begin: Any) -> None:
    global _inherited
    _inherited = (shares, begin)


def _read(place: int) -> list[BatchRead]:
    shares, begin = _inherited
    begin.wait(_START_SECONDS)
    return shares[place]()


def timed(read: Callable[[], Sequence[bytes | Exception]]) -> BatchRead:
    """Time the read of one batch; a file that cannot be read adds no bytes."""
    began = time.monotonic()
    samples = read()
    ended = time.monotonic()
    sizes = [len(sample) for sample in samples if isinstance(sample, bytes)]
    unread = [str(sample) for sample in samples if isinstance(sample, Exception)]
    return BatchRead(began, ended, len(sizes), sum(sizes), len(unread), next(iter(unread), ""))
