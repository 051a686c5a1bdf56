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

    Each process finds the data and the checkpoint by itself. If these differed, the processes would train on wrong
    samples, or wait for each other for ever. The check compares the `identity()` of the data module, if it has this
    method, and the step and content of `checkpoint`, the file to resume from.

    Raises RanksDiffer, in every process.
    """

    def __init__(self, checkpoint: Path | None) -> None:
        self.checkpoint = checkpoint

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or trainer.world_size == 1:
            return
        own = self._facts(trainer)
        gathered: list[dict[str, Any]] = [{}] * trainer.world_size
        dist.all_gather_object(gathered, own)
        for rank, facts in enumerate(gathered):
            if facts != gathered[0]:
                raise RanksDiffer(_difference(rank, facts, gathered[0]))

    def _facts(self, trainer: Trainer) -> dict[str, Any]:
        """The facts to compare; an error becomes a fact, since the other processes wait for this process."""
        try:
            return _identity_of(getattr(trainer, "datamodule", None)) | _checkpoint_facts(self.checkpoint)
        except (OSError, zipfile.BadZipFile, ImagenetOptError) as error:
            return {f"an error on rank {trainer.global_rank}": f"{type(error).__name__}: {error}"}


def _identity_of(data: Any) -> dict[str, Any]:
    return dict(data.identity()) if hasattr(data, "identity") else {}


def _checkpoint_facts(path: Path | None) -> dict[str, Any]:
    """Step and checksum of a checkpoint, which do not depend on its path."""
    if path is None:
        return {"checkpoint of step": "none"}
    with zipfile.ZipFile(path) as archive:
        records = [(record.filename, record.CRC) for record in archive.infolist()]
    return {
        "checkpoint of step": checkpoints.load(path)["global_step"],
        "checksum of the checkpoint": zlib.crc32(repr(records).encode()),
    }


def _difference(rank: int, facts: dict[str, Any], first: dict[str, Any]) -> str:
    names = dict.fromkeys([*first, *facts])
    differences = [
        f"{name} {facts.get(name, 'none')} instead of {first.get(name, 'none')}"
        for name in names
        if facts.get(name) != first.get(name)
    ]
    return (
        f"rank {rank} differs from rank 0: {'; '.join(differences)}. All processes need the same files and the same "
        "run folder: share data.root and hydra.run.dir between the nodes, or copy both completely, then run the same "
        "command again"
    )
