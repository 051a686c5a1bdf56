"""Writes shards in processes, one shard per process at a time, so that no image is sent between processes."""

import warnings
from collections.abc import Callable, MutableSequence, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from itertools import accumulate

from imagenet_opt.errors import PackStopped
from imagenet_opt.pack.image import Encoding
from imagenet_opt.pack.shard_writer import write_shard
from imagenet_opt.pack.source import Source
from imagenet_opt.pack.target import FolderTarget
from imagenet_opt.processes import ServerContext, pool

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
    counts = ServerContext().RawArray("q", len(tasks))  # without a lock, which a killed process would never release
    try:
        with pool(min(workers, len(tasks)), _begin, (counts,)) as processes:
            running = {processes.submit(_make_shard, slot, task) for slot, task in enumerate(tasks)}
            while running:
                done, running = wait(running, _SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
                for finished in done:
                    finished.result()
                on_progress(sum(counts), total)
    except BrokenProcessPool as error:
        raise PackStopped(
            "a packing process was killed, perhaps because memory ran out; run the same command again: it resumes "
            f"where it stopped. If another process is killed, lower workers={workers}"
        ) from error


_counts: MutableSequence[int]
"""In a worker: number of processed images by task, shared by all processes."""


def _begin(counts: MutableSequence[int]) -> None:
    global _counts
    _counts = counts
    warnings.simplefilter("ignore")  # Pillow warns about metadata


def _make_shard(slot: int, task: ShardTask) -> None:
    def advance() -> None:
        _counts[slot] += 1

    _write(task, advance)


def _write(task: ShardTask, advance: Callable[[], None]) -> None:
    part = write_shard(task.target, task.name, task.source, task.encoding, first=task.first, advance=advance)
    task.target.write_json(task.part, asdict(part))
