"""Checks that all processes of a run see the same data and the same checkpoint."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.errors import ImagenetOptError, RanksDiffer
from imagenet_opt.run.checkpoint import files as checkpoints


class RankCheck(Callback):
    """Compares data and checkpoint of all processes, before any process restores a checkpoint or trains.

    Each process finds the data and the checkpoint by itself. With other data or another checkpoint, processes would
    train on wrong samples, or wait for each other for ever. The check compares the `identity()` of the data module, if
    it has this method, and the step and content of `checkpoint`, the file to resume from.

    Raises RanksDiffer, in every process.
    """

    def __init__(self, checkpoint: Path | None) -> None:
        self.checkpoint = checkpoint

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or trainer.world_size == 1:
            return
        facts_by_rank: list[dict[str, Any]] = [{}] * trainer.world_size
        dist.all_gather_object(facts_by_rank, self._facts(trainer))
        for rank, facts in enumerate(facts_by_rank):
            if facts != facts_by_rank[0]:
                raise RanksDiffer(_difference(rank, facts, facts_by_rank[0]))

    def _facts(self, trainer: Trainer) -> dict[str, Any]:
        """The facts to compare; an error becomes a fact, since the other processes wait for this process."""
        data: Any = getattr(trainer, "datamodule", None)
        try:
            return (dict(data.identity()) if hasattr(data, "identity") else {}) | _checkpoint_facts(self.checkpoint)
        except (OSError, zipfile.BadZipFile, ImagenetOptError) as error:
            return {f"an error on rank {trainer.global_rank}": f"{type(error).__name__}: {error}"}


def _checkpoint_facts(path: Path | None) -> dict[str, Any]:
    """Step and checksum of a checkpoint, which do not depend on its path."""
    if path is None:
        return {"checkpoint of step": "none"}
    with zipfile.ZipFile(path) as archive:
        records = [(record.filename, record.CRC) for record in archive.infolist()]
    step, checksum = checkpoints.load(path)["global_step"], zlib.crc32(repr(records).encode())
    return {"checkpoint of step": step, "checksum of the checkpoint": checksum}


def _difference(rank: int, facts: dict[str, Any], first: dict[str, Any]) -> str:
    pairs = {name: (facts.get(name, "none"), first.get(name, "none")) for name in first | facts}
    differences = [
        f"{name} {fact} instead of {expected}" for name, (fact, expected) in pairs.items() if fact != expected
    ]
    return (
        f"rank {rank} differs from rank 0: {'; '.join(differences)}. All processes need the same files and the same "
        "run folder: share data.root and hydra.run.dir between the nodes, or copy both completely, then run the same "
        "command again"
    )
