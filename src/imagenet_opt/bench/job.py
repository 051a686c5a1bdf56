"""What one turn of a benchmark is to do: handed to the process that does it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.index.subset import subset
from imagenet_opt.data.options import LoaderOptions

WORKER, REGION, CEILING = "worker resize", "region decode", "nvImageCodec alone"
OWN = (WORKER, REGION)
"""Our rows; CEILING is the limit of the second."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """side: a row's name. packed: where the copy of the files in a peer's own format is, or is to be written.

    passes: so often all files are listed one after the other, so that no epoch ends within a turn.
    num_workers, prefetch_factor: of all sides alike. device: where batches end.
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
        """(path, label) of every file, all passes."""
        once = [(self.index.path(i), label) for i, label in enumerate(self.index.labels.tolist())]
        return once * self.passes

    def long_index(self) -> FileIndex | ShardIndex:
        """All passes as one index."""
        if self.passes == 1:
            return self.index
        rows = np.tile(np.arange(self.num_files), self.passes)
        return subset(self.index, rows)
