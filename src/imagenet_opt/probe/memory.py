"""Finds the batch sizes that fit into memory. Each trial runs in its own process, so lack of memory ends only the
trial."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_opt.config.build import largest_size
from imagenet_opt.data.datamodule import ImageData
from imagenet_opt.errors import ConfigError, OutOfMemory
from imagenet_opt.measure.stats.rounds import TurnFailed
from imagenet_opt.model.micro_batch import MicroBatches, Result
from imagenet_opt.out_of_memory import explained, ran_out
from imagenet_opt.probe.isolated import Hung, call_isolated

SPARE = 0.1
"""Share of the memory that is left free, for crops in flight, validation, and other uses of the device."""
MOST = 1024
"""Most images of a process: our choice. Eight processes then have the largest batch, 8192, with which ResNet-50
keeps its accuracy when the learning rate is scaled (arXiv 1706.02677)."""
LIMIT_SECONDS = 600.0
"""Time limit of a trial; a slower trial has so little memory that it makes no progress."""


@dataclass(frozen=True)
class Trial:
    """peak_gib: None if the batch did not fit; `why` may then contain the reason."""

    batch: int
    peak_gib: float | None
    why: str = ""


@dataclass
class MemoryTrials:
    """Trials of one configuration. before: called with a description of each trial."""

    config: DictConfig
    before: Callable[[str], None] = lambda what: None
    tried: list[Trial] = field(default_factory=list)

    def fits(self, batch: int) -> bool:
        """Whether three steps finish well within LIMIT_SECONDS. Raises ConfigError if they fail for another reason than
        memory."""
        self.before(f"whether {batch} images fit")
        peak_gib, why = None, ""
        try:
            peak_gib = self._try(batch)["peak_gib"]
        except TurnFailed as error:
            why = str(error)
            lacks_memory = ran_out(RuntimeError(why)) or why.startswith("killed by signal 9")
            if not isinstance(error, Hung) and not lacks_memory:
                raise ConfigError(f"{batch} images cannot be tried: {why}") from error
        self.tried.append(Trial(batch, peak_gib, why))
        return peak_gib is not None

    def largest(self, *, start: int, most: int) -> int:
        """The largest batch that fits at once; 0 for none."""
        return largest_that_fits(self.fits, start=start, most=most)

    def nothing_fits(self) -> OutOfMemory:
        why = next((trial.why for trial in reversed(self.tried) if trial.why), "out of memory")
        return OutOfMemory(
            f"not even {min(trial.batch for trial in self.tried)} images fit into the memory at "
            f"{largest_size(self.config)} px ({why}); lower data.batch_size or data.image_size, choose a smaller "
            "model.name, or end other programs on the device"
        )

    def _try(self, batch: int) -> Any:
        config = self.config.copy()
        with open_dict(config):
            config.data.batch_size = batch
            config.model.micro_batch_size = None
            if "acceleration" in config.callbacks:
                config.callbacks.acceleration.compile = False
        return device_steps("fits", config, limit_seconds=LIMIT_SECONDS, spare=SPARE)


def device_steps(function: str, config: DictConfig, *, limit_seconds: float, **options: float) -> Any:
    """Call a function of probe/device_steps.py in a process of its own. Raises as `call_isolated` does. options:
    further values of the function's job."""
    with tempfile.TemporaryDirectory(prefix="imagenet_opt_tune_") as folder:
        job = job_of(config, folder) | options
        return call_isolated(f"imagenet_opt.probe.device_steps.{function}", job, limit_seconds=limit_seconds)


def job_of(config: DictConfig, folder: str) -> dict[str, Any]:
    """The job for steps of this configuration on one device, at the largest image size of its schedule."""
    config = config.copy()
    devices = config.trainer.devices
    with open_dict(config):
        config.run_folder = folder
        config.data.image_size = largest_size(config)
        config.trainer.devices = devices[:1] if OmegaConf.is_list(devices) else 1
    return {"config": OmegaConf.create(OmegaConf.to_container(config, resolve=True)), "folder": folder}


def num_train(data: ImageData) -> int:
    """Images per epoch."""
    return data.loading.samples_per_epoch or len(data.train)


def most_images(num_train: int) -> int:
    """Upper limit of the search: 1024 images and a quarter of an epoch."""
    return allowed_size(max(1, min(MOST, num_train // 4)))


MULTIPLE = 8
"""Tensor cores use whole tiles of this many 16-bit values (NVIDIA, Matrix Multiplication Background, User's Guide)."""


def largest_that_fits(fits: Callable[[int], bool], *, start: int, most: int) -> int:
    """The largest size up to `most` for which `fits` returns True; 0 if not even one image fits.

    Sizes are multiples of 8, and 4, 2, 1. The search doubles or halves from `start` until it has a size that fits and
    one that does not, then bisects: at most about 2 log2(most / 8) trials. Smaller sizes are assumed to fit if a larger
    one does.
    """
    most = allowed_size(most)
    fitting, failing = 0, most + MULTIPLE
    size = allowed_size(min(max(1, start), most))
    while size > fitting:
        fitting, failing = (size, failing) if fits(size) else (fitting, size)
        if failing > most:
            size = allowed_size(min(2 * fitting, most))
        else:
            middle = (fitting + failing) // 2
            size = allowed_size(middle) if middle else 0
    return fitting


def allowed_size(size: int) -> int:
    """The largest size up to `size` that the search may try: a multiple of 8, or 4, 2, 1."""
    return size // MULTIPLE * MULTIPLE if size >= MULTIPLE else 1 << (size.bit_length() - 1)


class NoHalving(Callback):
    """Callback that forbids halving micro-batches, so that a rate belongs to the requested size. Put
    `named_out_of_memory` around the fit."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        size: Any = pl_module.micro_batch_size
        pl_module.micro_batches = NeverHalved(size)  # type: ignore[assignment]


class NeverHalved(MicroBatches):
    def run(
        self, work: Callable[[slice], Result], num_images: int, take_back: Callable[[], None] | None
    ) -> list[Result]:
        return super().run(work, num_images, None)


def named_out_of_memory(config: DictConfig) -> AbstractContextManager[None]:
    """Converts errors of torch or Python about lack of memory into an OutOfMemory that names the configuration keys. An
    OutOfMemory passes through unchanged, since its message is more precise."""
    batch, micro = config.data.batch_size, config.model.micro_batch_size or "null"
    where = f"at data.batch_size={batch}, model.micro_batch_size={micro}"
    return explained(where, "lower data.batch_size, or set a smaller model.micro_batch_size")
