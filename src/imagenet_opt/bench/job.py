"""The settings of a turn of a benchmark, in plain values for the process of the turn."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.index.subset import subset
from imagenet_opt.data.options import LoaderOptions

WORKER, REGION, CEILING = "worker resize", "region decode", "nvImageCodec alone"
OWN = (WORKER, REGION)
"""Our rows; CEILING is the limit of REGION."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Settings of a turn.

    side: name of the row. packed: path of the copy in a peer's own file format, which is written there if it is
    missing. passes: how often the list of files is repeated, so that no epoch ends within a turn. num_workers,
    prefetch_factor: the same for all rows; threads make each batch together, so they have prefetch_factor batches ahead
    in all. device: where batches are delivered.
    """

    side: str
    index: FileIndex | ShardIndex
    loading: LoaderOptions
    passes: int
    num_workers: int
    prefetch_factor: int
    num_warmup: int
    num_batches: int
    packed: Path = Path()
    device: str = "cpu"

    @property
    def num_files(self) -> int:
        return len(self.index)

    def samples(self) -> list[tuple[str, int]]:
        """(path, label) of every file, for all passes."""
        once = [(self.index.path(i), label) for i, label in enumerate(self.index.labels.tolist())]
        return once * self.passes

    def long_index(self) -> FileIndex | ShardIndex:
        """All passes as one index."""
        return self.index if self.passes == 1 else subset(self.index, np.tile(np.arange(self.num_files), self.passes))
