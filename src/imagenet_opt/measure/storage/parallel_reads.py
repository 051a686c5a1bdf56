"""Batches read by several processes at once, as a loader's workers read them, without anything else."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from threading import BrokenBarrierError
from typing import Any, NamedTuple

from imagenet_opt.measure.stats import physics
from imagenet_opt.measure.stats.rounds import TurnFailed

_START_SECONDS = 60.0


class BatchRead(NamedTuple):
    """Seconds of the machine's monotonic clock, which all processes share.

    num_files: that were read. num_unread: others, which could not be; reason: why the first of those could not.
    """

    began: float
    ended: float
    num_files: int
    num_bytes: int
    num_unread: int = 0
    reason: str = ""


Share = Callable[[], list[BatchRead]]
"""Reads the batches of one process, from the first to the last."""


@dataclass(frozen=True)
class ReadPass:
    """From the first request to the last answer: nothing read ahead is left out, and nothing counted twice.

    num_unread: files beside those, which could not be read. is_cold: the kernel confirms that all were out of memory.
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
    """Raises TurnFailed where no file was read."""
    num_files, num_bytes = sum(batch.num_files for batch in batches), sum(batch.num_bytes for batch in batches)
    if not num_files:
        raise TurnFailed(next((batch.reason for batch in batches if batch.reason), "no batch was read"))
    seconds = max(batch.ended for batch in batches) - min(batch.began for batch in batches)
    num_unread = sum(batch.num_unread for batch in batches)
    return ReadPass(max(seconds, 1e-9), len(batches), num_files, num_bytes, num_unread)


def checked(found: ReadPass) -> ReadPass:
    """The pass itself. Raises TurnFailed for a rate that no machine can have."""
    mb_per_image = found.num_bytes / found.num_files / 1e6
    claim = physics.Claim(num_images=found.num_files, seconds=found.seconds, mb_per_image=mb_per_image)
    if reason := physics.impossible(claim):
        raise TurnFailed(f"not measured: {reason}")
    return found


def read_shares(shares: Sequence[Share]) -> ReadPass:
    """Each share in a process of its own, forked as a loader's workers are; all begin together.

    Ctrl-C, which the terminal sends to all of them, reaches this process alone, which ends the others. Raises what a
    share raises; TurnFailed where a process dies.
    """
    context = multiprocessing.get_context("fork")
    begin = context.Barrier(len(shares))  # also sees to it that no process takes two shares
    try:
        with ProcessPoolExecutor(len(shares), context, _inherit, (shares, begin)) as processes, _ended_when_stopped():
            with _deaf_to_interrupts():
                answers = processes.map(_read, range(len(shares)))
            return sum_up([batch for found in answers for batch in found])
    except (BrokenProcessPool, BrokenBarrierError) as error:
        raise TurnFailed("a process that reads was killed, most often as memory ran out") from error


@contextmanager
def _ended_when_stopped() -> Iterator[None]:
    """The processes that are started meanwhile, if this one is stopped: they may wait for storage for long."""
    others = set(multiprocessing.active_children())
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        raise


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes forked meanwhile stay so; this one hears of an interrupt afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_inherited: tuple[Sequence[Share], Any] = ((), None)


def _inherit(shares: Sequence[Share], begin: Any) -> None:
    global _inherited
    _inherited = (shares, begin)


def _read(place: int) -> list[BatchRead]:
    shares, begin = _inherited
    begin.wait(_START_SECONDS)
    return shares[place]()


def timed(read: Callable[[], Sequence[bytes | Exception]]) -> BatchRead:
    """One batch; a file that cannot be read has no bytes."""
    began = time.monotonic()
    samples = read()
    ended = time.monotonic()
    sizes = [len(sample) for sample in samples if isinstance(sample, bytes)]
    unread = [str(sample) for sample in samples if isinstance(sample, Exception)]
    return BatchRead(began, ended, len(sizes), sum(sizes), len(unread), next(iter(unread), ""))
