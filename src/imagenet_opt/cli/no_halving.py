"""A fit that ends where the memory runs out, and does not go on with smaller micro-batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig

from imagenet_opt.errors import OutOfMemory
from imagenet_opt.model.micro_batch import MicroBatches, Part
from imagenet_opt.out_of_memory import ran_out


class NoHalving(Callback):
    """Rates are compared as of what was asked for. Put `named_out_of_memory` around the fit."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        asked: Any = pl_module.micro_batch_size
        pl_module.micro_batches = AskedOnly(asked)  # type: ignore[assignment]


class AskedOnly(MicroBatches):
    """Micro-batches that are never halved."""

    def run(self, work: Callable[[slice], Part], num_images: int, take_back: Callable[[], None] | None) -> list[Part]:
        return super().run(work, num_images, None)


@contextmanager
def named_out_of_memory(config: DictConfig) -> Iterator[None]:
    """An error of torch or Python that says that memory ran out, in a compilation or a copy, becomes an OutOfMemory
    that names the keys of this configuration. One that is there already knows better what to set."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not ran_out(error) and "bad_alloc" not in str(error):
            raise
        where, micro = f"out of memory at data.batch_size={config.data.batch_size}", config.model.micro_batch_size
        if micro is None:
            raise OutOfMemory(f"{where}; lower it or set model.micro_batch_size") from error
        raise OutOfMemory(f"{where}, model.micro_batch_size={micro}; lower one of them") from error
