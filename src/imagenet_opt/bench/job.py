"""The settings of a turn of a benchmark, in plain values for the process of the turn."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from imagenet_opt.data.index.files import subset
from imagenet_opt.data.index.folder_index import FileIndex
from imagenet_opt.data.index.shard_index import ShardIndex
from imagenet_opt.data.options import LoaderOptions

WORKER, REGION, CEILING = "worker resize", "region decode", "nvImageCodec alone"
OWN = (WORKER, REGION)
"""Our rows; CEILING is the limit of REGION."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Settings of a turn.

    index: the files of all rows. passes: how often they are listed, so that no epoch ends within a turn. num_workers,
    prefetch_factor: the same for all rows; threads make each batch together, so they have prefetch_factor batches ahead
    in all. device: where our batches are delivered. row: its name. packed: folder of a copy in a peer's own format.
    """

    index: FileIndex | ShardIndex
    loading: LoaderOptions
    passes: int
    num_workers: int
    prefetch_factor: int
    num_warmup: int
    num_batches: int
    device: str = "cpu"
    row: str = ""
    packed: Path = Path()

    def samples(self) -> list[tuple[str, int]]:
        """(path, label) of every file, for all passes."""
        once = [(self.index.path(i), label) for i, label in enumerate(self.index.labels.tolist())]
        return once * self.passes

    def long_index(self) -> FileIndex | ShardIndex:
        """All passes as one index."""
        return subset(self.index, np.tile(np.arange(len(self.index)), self.passes))
