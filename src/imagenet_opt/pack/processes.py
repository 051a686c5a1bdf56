"""Writes shards in processes, one shard per process at a time, so that no image is sent between processes."""

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, MutableSequence, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from itertools import accumulate

from imagenet_opt.blocked_signals import blocked
from imagenet_opt.errors import PackStopped
from imagenet_opt.pack.image import Encoding
from imagenet_opt.pack.shard_writer import write_shard
from imagenet_opt.pack.source import Source
from imagenet_opt.pack.target import FolderTarget

_SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class ShardTask:
    """A shard to write; its part of the index goes to `part`. name, part: of files in `target`. first: number of the
    shard's first sample."""

    target: FolderTarget
    name: str
    part: str
    source: Source
    first: int
    encoding: Encoding


def make_shards(tasks: Sequence[ShardTask], workers: int, on_progress: Callable[[int, int], None]) -> None:
    """Write the shards of all tasks. workers: number of processes; 0 writes in this process.

    Raises PackStopped, also when a process is killed. Complete shards stay.
    """
    if not tasks:
        return
    total = sum(len(task.source) for task in tasks)
    if workers == 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about metadata
            for num_done, task in zip(accumulate(len(task.source) for task in tasks), tasks, strict=True):
                _write(task, advance=lambda: None)
                on_progress(num_done, total)
        return
    spawn = multiprocessing.get_context("spawn")  # a fork would copy locks that threads of the parent hold
    counts = spawn.RawArray("q", len(tasks) + 1)  # without a lock, which a killed process would never release
    pool = ProcessPoolExecutor(min(workers, len(tasks)), spawn, _begin, (counts,))
    try:
        with blocked(signal.SIGINT):
            running = {pool.submit(_make_shard, slot, task) for slot, task in enumerate(tasks)}
        while running:
            done, running = wait(running, _SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
            for finished in done:
                finished.result()
            on_progress(sum(counts[:-1]), total)
    except BrokenProcessPool as error:
        raise PackStopped(
            "a packing process was killed, perhaps because memory ran out; run the same command again: it resumes "
            f"where it stopped. If another process is killed, lower workers={workers}"
        ) from error
    except BaseException:
        counts[-1] = True
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_counts: MutableSequence[int]
"""In a worker: number of processed images by task; the last entry is 1 to end. Shared by all processes."""


def _begin(counts: MutableSequence[int]) -> None:
    global _counts
    _counts = counts
    warnings.simplefilter("ignore")  # Pillow warns about metadata
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the parent requests it or dies, even during a read; a half-written shard has no name."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive() and not _counts[-1]:
        parent.join(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _make_shard(slot: int, task: ShardTask) -> None:
    def advance() -> None:
        _counts[slot] += 1

    _write(task, advance)


def _write(task: ShardTask, advance: Callable[[], None]) -> None:
    part = write_shard(task.target, task.name, task.source, task.encoding, first=task.first, advance=advance)
    task.target.write_json(task.part, asdict(part))
