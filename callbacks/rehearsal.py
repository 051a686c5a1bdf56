"""Trains without an accelerator: a timeline simulates its computation, everything else is real."""

from contextlib import ExitStack
from dataclasses import fields
from functools import cache
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer

from imagenet_opt.data.batch import Batch, RaggedBatch
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.errors import CheckpointMismatch, ConfigError, printable
from imagenet_opt.measure.rehearsal import Accelerator, DeviceTimeline, NullNetwork, burn, share
from imagenet_opt.measure.telemetry.host_syncs import HostSyncs
from imagenet_opt.measure.telemetry.idle_causes import HEALTHY_BUSY
from imagenet_opt.run.hook_timer import FETCH, BetweenFetches, clock_of
from imagenet_opt.run.rows import is_logging_step, log_numbers

_FETCHES = (FETCH, "[_EvaluationLoop].val_next")


class Rehearsal(Callback):
    """Replaces the forward and backward of the network at `network` (an attribute of the module) by a simulated device.

    Loader, callbacks, loggers and checkpoints run as usual; the network's weights do not change. Images of
    this package's loader are not resized, since no device does that.
    A step uses `launch_seconds` of the host's CPU and is queued on `timeline`. The host waits at each operation that
    would wait for a real device (measure/telemetry/host_syncs.py).

    name, images_per_second, ..., estimate: of the accelerator, see measure/rehearsal.py.
    rated_images_per_second: of a healthy device of this kind; None for images_per_second.

    | key | unit |
    |---|---|
    | `rehearsal/accelerator_utilization` | computing share of the device's time since the last logging step, 0 to 1 |

    | key of `summary()`, without the first step and validation | unit |
    |---|---|
    | `rehearsal/accelerator_utilization` | computing share of the device's time, 0 to 1, as in MLPerf Storage |
    | `rehearsal/busy_seconds`, `rehearsal/idle_seconds` | seconds of the device |
    | `rehearsal/host_waits` | number of waits of the host for the device |

    Raises ConfigError; CheckpointMismatch when resuming from a checkpoint of a real run.
    """

    def __init__(
        self,
        *,
        name: str,
        images_per_second: float,
        launch_seconds: float,
        copy_gb_per_second: float,
        source: str = "unknown",
        estimate: bool = True,
        rated_images_per_second: float | None = None,
        network: str = "net",
    ) -> None:
        self.accelerator = Accelerator(
            name=name,
            images_per_second=images_per_second,
            launch_seconds=launch_seconds,
            copy_gb_per_second=copy_gb_per_second,
            source=source,
            estimate=estimate,
        )
        self.rated_images_per_second = rated_images_per_second or images_per_second
        self.network = network
        self._undo = ExitStack()
        self._begin()

    def _begin(self) -> None:
        self.timeline = self._device = DeviceTimeline()
        self.waits = HostSyncs(lambda: self._device.synchronize(), on_device=_is_not_shared)
        self._unsent_bytes = 0
        self._has_stepped = False
        self._logged = (0.0, 0.0)

    @property
    def simulated(self) -> str:
        """Name of the accelerator in all messages; the summary of a run reads this property too."""
        return f"simulated {printable(self.accelerator.name)}"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.world_size > 1:
            raise ConfigError("a rehearsal simulates one accelerator; set trainer.devices=1 and trainer.num_nodes=1")
        if trainer.strategy.root_device.type != "cpu":
            raise ConfigError("a rehearsal runs on the CPU; set trainer.accelerator=cpu")
        if not isinstance(getattr(pl_module, self.network, None), nn.Module):
            raise ConfigError(
                f"callbacks.rehearsal.network={self.network!r} is not a network in {type(pl_module).__name__}"
            )

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.state_key not in checkpoint.get("callbacks", {}):
            raise CheckpointMismatch(
                "the checkpoint is of a run on real hardware, which a rehearsal would spoil; "
                "choose another hydra.run.dir, or resume_from=null"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"simulated": self.accelerator.name}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin()
        self._undo.callback(BetweenFetches(clock_of(trainer), self.waits, *_FETCHES).stop)
        net: nn.Module = getattr(pl_module, self.network)
        self._replace(net, "forward", NullNetwork(net, self.launch))
        accelerator = self.accelerator
        rank_zero_info(
            f"{accelerator}: {accelerator.images_per_second:g} images/s, {accelerator.launch_seconds * 1000:g} ms of a "
            f"CPU to launch a step, copies at {accelerator.copy_gb_per_second:g} GB/s; source: "
            f"{printable(accelerator.source)}"
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._simulate_finish(trainer.train_dataloader)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Run the optimizer once, so that checkpoints contain its state and have their real size; later steps have no
        gradients."""
        if not self._has_stepped:
            self._has_stepped = True
            for parameter in getattr(pl_module, self.network).parameters():
                parameter.grad = torch.zeros_like(parameter)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if is_logging_step(trainer):
            now = self.timeline.busy_seconds, self.timeline.idle_seconds
            utilization = share(*(new - old for new, old in zip(now, self._logged, strict=True)))
            self._logged = now
            if utilization is not None:
                log_numbers(trainer, {"rehearsal/accelerator_utilization": utilization})

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.timeline.pause()
        self._device = DeviceTimeline()
        loaders = trainer.val_dataloaders
        for loader in loaders if isinstance(loaders, list) else [loaders]:
            self._simulate_finish(loader)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._device.synchronize()
        self._device = self.timeline
        self.timeline.resume()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (utilization := self.timeline.utilization) is not None:
            rank_zero_info(
                f"{self.simulated}: accelerator utilisation {100 * utilization:.1f} %, without validation "
                f"(MLPerf Storage asks for {100 * HEALTHY_BUSY:.0f} %)"
            )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._undo.close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._undo.close()

    def summary(self) -> dict[str, float]:
        numbers = {
            "accelerator_utilization": self.timeline.utilization,
            "busy_seconds": self.timeline.busy_seconds,
            "idle_seconds": self.timeline.idle_seconds,
            "host_waits": float(sum(self.waits.counts.values())),
        }
        return {f"rehearsal/{name}": value for name, value in numbers.items() if value is not None}

    def launch(self, images: Tensor, *, training: bool) -> None:
        """Queue the computation on images (N, 3, H, W), after the copy of the batch if the copy is not queued yet."""
        accelerator, side = self.accelerator, (images.shape[-2] * images.shape[-1]) ** 0.5
        compute_seconds = accelerator.step_seconds(len(images), side, training=training)
        self._device.submit(compute_seconds, accelerator.copy_seconds(self._unsent_bytes))
        self._unsent_bytes = 0
        burn(accelerator.step_launch_seconds(training=training))

    def _simulate_finish(self, loader: Any) -> None:
        if isinstance(loader, DevicePrefetcher) and loader.finish != self._finish:
            self._replace(loader, "finish", self._finish)

    def _finish(self, batch: Batch | RaggedBatch) -> Batch:
        """The batch, with blank images."""
        tensors = [value for field in fields(batch) if isinstance(value := getattr(batch, field.name), Tensor)]
        self._unsent_bytes = sum(tensor.nbytes for tensor in tensors)
        return Batch(
            labels=batch.labels.clone(),
            indices=batch.indices.clone(),
            valid=batch.valid.clone(),
            key=batch.key,
            stats=batch.stats,
            lease=None,
            images=_no_images(len(batch), batch.key.image_size),
        )

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        """Replace an attribute of this object until the end of the fit."""
        if name in vars(owner):
            self._undo.callback(setattr, owner, name, vars(owner)[name])
        else:
            self._undo.callback(delattr, owner, name)
        setattr(owner, name, new)


def _is_not_shared(tensor: Tensor) -> bool:
    """Whether a tensor is not in shared memory, as the loader's tensors are."""
    return not tensor.is_shared()


@cache
def _no_images(num_images: int, size: int) -> Tensor:
    """Zeros (N, 3, size, size) whose memory is never accessed, so the system does not allocate it."""
    return torch.zeros(num_images, 3, size, size)
