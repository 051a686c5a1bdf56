"""All processes of a run see the same data and the same checkpoint."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.errors import ImagenetOptError, RanksDiffer
from imagenet_opt.run.checkpoint import files as checkpoints


class RankCheck(Callback):
    """Compares what the processes of a run found, before any of them restores a checkpoint or trains.

    Each process finds the data and the checkpoint by itself. With different ones the processes would train on wrong
    samples, or wait for each other for ever. Compared are the `identity()` of the data module, where there is one, and
    the step and content of `checkpoint`, the file to resume from.

    Raises RanksDiffer, in every process.
    """

    def __init__(self, checkpoint: Path | None) -> None:
        self.checkpoint = checkpoint

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or trainer.world_size == 1:
            return
        own = self._facts(trainer)
        found: list[dict[str, Any]] = [{}] * trainer.world_size
        dist.all_gather_object(found, own)
        for rank, facts in enumerate(found):
            if facts != found[0]:
                raise RanksDiffer(_difference(rank, facts, found[0]))

    def _facts(self, trainer: Trainer) -> dict[str, Any]:
        """An error becomes a fact: the other processes wait for this one, and must learn of it."""
        try:
            return _identity_of(getattr(trainer, "datamodule", None)) | _checkpoint_facts(self.checkpoint)
        except (OSError, zipfile.BadZipFile, ImagenetOptError) as error:
            return {f"an error on rank {trainer.global_rank}": f"{type(error).__name__}: {error}"}


def _identity_of(data: Any) -> dict[str, Any]:
    return dict(data.identity()) if hasattr(data, "identity") else {}


def _checkpoint_facts(path: Path | None) -> dict[str, Any]:
    """The same file has the same facts wherever it is mounted."""
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
