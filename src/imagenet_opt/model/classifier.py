"""The LightningModule: one loader batch is one optimizer step."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities import rank_zero_info
from timm.utils.distributed import distribute_bn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from imagenet_opt.errors import ConfigError
from imagenet_opt.model.loss import ClassificationMetrics, check_loss, losses_of
from imagenet_opt.model.micro_batch import MicroBatches, StepMomentum, part_sizes
from imagenet_opt.model.nan_guard import FILE as NAN_FILE
from imagenet_opt.model.nan_guard import NaNGuard
from imagenet_opt.model.network import frozen_parts
from imagenet_opt.model.optimizer import check_saved_groups, options_of_groups, restore_options
from imagenet_opt.model.rollback import Rollback
from imagenet_opt.model.schedule import Schedule
from imagenet_opt.out_of_memory import explained, ran_out
from imagenet_opt.private_api import unscales_itself
from imagenet_opt.run.hooks import FreesMemory, callbacks_of
from imagenet_opt.run.rows import StepsAhead, is_logging_step, log_numbers


class Classifier(LightningModule):
    """Trains `net` by cross-entropy with manual optimization.

    A batch has `images` (float, N x 3 x H x W), `labels` (int64 (N,) or soft (N, C)), `indices` (int64 (N,)) and
    `valid` (bool (N,)).
    optimizer: (network, device=...) -> Optimizer. schedule: step -> factor, see model/schedule.py.
    micro_batch_size: images per forward and backward; None for the whole batch. The recipe stays the same, except that
    batch norm sees fewer images at once. When the device's memory runs out, the size is halved and the step repeated;
    with several processes the run ends instead.
    batch_norm_momentum: "per_step" lowers it so that the statistics move once per step of `batch_size` images in this
    process, see StepMomentum.
    max_grad_norm: gradients are scaled down to this norm; None for never.
    A loss that is NaN or infinite ends the run three steps after the next logging step, or before the next checkpoint.
    loss, label_smoothing, target_threshold: of training, see model/loss.py; validation uses plain cross-entropy.
    val_flip: validation adds the logits of the mirrored image (test-time augmentation).
    set_to_none: after a step gradients are freed; otherwise they are filled with zeros.
    freeze: parts of the network that are not trained, and whose batch-norm statistics stay, see model/network.py.
    network_config: plain values from which the network can be built again; kept in the checkpoint. record, an
    attribute: other parts of the checkpoint, as plain values by name.

    | key | unit |
    |---|---|
    | `train/loss`, `train/acc1` | mean since the last logging step; accuracy as a share, 0 to 1 |
    | `val/loss`, `val/acc1` | of the whole validation |
    | `val/acc5` | the same, with six classes or more |
    | `lr` | learning rate of the step, of the first parameter group; with `optimizer.layer_decay` that of the head |

    Raises NonFiniteLoss, OutOfMemory.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        optimizer: Callable[..., Optimizer],
        schedule: Schedule,
        loss: Literal["cross_entropy", "bce_mean", "bce_sum"] = "cross_entropy",
        label_smoothing: float = 0.1,
        target_threshold: float | None = None,
        val_flip: bool = False,
        micro_batch_size: int | None = None,
        batch_norm_momentum: Literal["per_micro_batch", "per_step"] = "per_micro_batch",
        batch_size: int | None = None,
        max_grad_norm: float | None = None,
        set_to_none: bool = True,
        freeze: str | None = None,
        network_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_loss(loss, label_smoothing, target_threshold)
        if max_grad_norm is not None and max_grad_norm <= 0:
            raise ConfigError(f"model.max_grad_norm={max_grad_norm} must be above 0, or null for no clipping")
        self.automatic_optimization = False
        self.net = net
        self.optimizer = optimizer
        self.schedule = schedule
        self.losses = partial(losses_of, loss=loss, smoothing=label_smoothing, target_threshold=target_threshold)
        self.val_flip = val_flip
        self.micro_batches = MicroBatches(micro_batch_size)
        self._momentum = StepMomentum(net) if batch_norm_momentum == "per_step" else None
        self.batch_size = batch_size
        self.max_grad_norm = max_grad_norm
        self.set_to_none = set_to_none
        self._frozen = frozen_parts(net, freeze)
        self.network_config = network_config or {}
        self.record: dict[str, Any] = {}
        self._seed = torch.initial_seed()
        self._restored_sums: Tensor | None = None
        self._saved_groups: list[dict[str, Any]] | None = None

    @property
    def micro_batch_size(self) -> int | None:
        return self.micro_batches.size

    def setup(self, stage: str) -> None:
        """Seed dropout and stochastic depth for each process; the weights are already drawn, and equal."""
        self._steps_ahead = StepsAhead(self.trainer.strategy.root_device)
        if stage == "fit" and self.trainer.world_size > 1:
            torch.manual_seed(self._seed + self.global_rank)

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.net, device=self.trainer.strategy.root_device)
        self._configured = options_of_groups(optimizer)
        if self._saved_groups is not None:
            check_saved_groups(self._saved_groups, optimizer)
        try:
            self.trainer.fit_loop.setup_data()  # otherwise the number of batches may be unknown
        except ValueError as error:
            if "val_check_interval" not in str(error):
                raise
            raise ConfigError(f"trainer.val_check_interval, or trainer.check_val_every_n_epoch: {error}") from error
        num_steps = self.trainer.estimated_stepping_batches
        if num_steps == float("inf"):
            raise ConfigError("a run without end has no schedule; set trainer.max_epochs or trainer.max_steps")
        steps_per_epoch = float(self.trainer.num_training_batches)
        factor = partial(self.schedule, num_steps=int(num_steps), steps_per_epoch=steps_per_epoch)
        once = lru_cache(maxsize=2)(factor)  # for all parameter groups
        scheduler = {"scheduler": LambdaLR(optimizer, lambda step: once(step)), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_fit_start(self) -> None:
        self.train_tally = ClassificationMetrics(self.device)
        if self._restored_sums is not None and self.global_rank == 0:  # the sums of all processes
            self.train_tally.sums = self._restored_sums.to(self.device)
        all_agree = partial(self.trainer.strategy.reduce_boolean_decision, all=True)
        name = f"rank{self.global_rank}_{NAN_FILE}" if self.global_rank else NAN_FILE
        self.nan_guard = NaNGuard(all_agree, Path(self.trainer.default_root_dir) / name)

    def on_train_start(self) -> None:
        """Apply the configured learning rate, weight decay and so on, which a checkpoint has overwritten."""
        for name in self._frozen:
            self.net.get_submodule(name).eval()  # Lightning restores this after each validation
        self._before = Rollback(self.net.buffers())
        self._set_momentum()
        optimizer: Any = self.optimizers()
        scheduler: Any = self.lr_schedulers()
        before = optimizer.param_groups[0]["lr"]
        restore_options(optimizer, scheduler, self._configured)
        if (now := optimizer.param_groups[0]["lr"]) != before:
            step, num_steps = self.trainer.global_step, self.trainer.estimated_stepping_batches
            rank_zero_info(
                f"from step {step} on: lr {now:.3g} instead of {before:.3g}, by a schedule of {num_steps} steps"
            )

    def _set_momentum(self) -> None:
        """Set the momentum for the present micro-batches; called before callbacks compile the network for them."""
        if self._momentum is not None and self.batch_size is not None:
            self._momentum.set(len(part_sizes(self.batch_size, self.micro_batch_size)))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self._steps_ahead.begin()
        optimizer: Any = self.optimizers()
        scheduler: Any = self.lr_schedulers()
        lr = float(optimizer.param_groups[0]["lr"])
        self._before.take()
        losses, logits = self._forward_backward(batch)
        self.nan_guard.add(self.trainer.global_step, losses.mean(), batch.indices)
        self.train_tally.add(losses, logits, batch.labels, batch.valid)
        with explained("in the optimizer", "lower model.micro_batch_size or end other programs on the device"):
            optimizer.step()
        optimizer.zero_grad(set_to_none=self.set_to_none)
        scheduler.step()
        if is_logging_step(self.trainer):
            log_numbers(self.trainer, {"lr": lr})
            log_numbers(self.trainer, self._late_means())
        elif self.nan_guard.is_full:
            self.nan_guard.stop_if_bad()

    def _late_means(self) -> Callable[[], dict[str, float]]:
        """Begin a new window of the training metrics. Returns a function that gives the means of the window that ends,
        once the device has finished this step, or raises NonFiniteLoss."""
        step, means_of = self.trainer.global_step - 1, self.train_tally.read_late(self._sum_of_processes)
        self.train_tally.reset()

        def read() -> dict[str, float]:
            means = means_of()
            self.nan_guard.note(step, is_finite=math.isfinite(means["loss"]))
            return {f"train/{name}": means[name] for name in ("loss", "acc1")}

        return read

    def _forward_backward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the gradients of the batch. Returns losses (N,) and logits (N, C), detached."""
        num_images = len(batch.images)

        def work(part: slice) -> tuple[Tensor, Tensor]:
            with self._sync_gradients(part.stop >= num_images):
                logits = self.net(batch.images[part]).float()
                losses = self.losses(logits, batch.labels[part])
                self.manual_backward(losses.sum() / num_images)
            return losses.detach(), logits.detach().clone()  # the next replay of a CUDA graph overwrites the logits

        prepare_retry = partial(self._prepare_retry, batch) if self.trainer.world_size == 1 else None
        parts = self.micro_batches.run(work, num_images, prepare_retry)
        losses, logits = zip(*parts, strict=True)
        return torch.cat(losses), torch.cat(logits)

    def _prepare_retry(self, batch: Any) -> None:
        """Restore gradients, buffers and random state from before the step."""
        self.net.zero_grad(set_to_none=True)
        self._before.restore()
        self._set_momentum()
        self._free_memory(batch)

    def _free_memory(self, batch: Any) -> None:
        """Free memory before `batch` is repeated."""
        torch.cuda.empty_cache()
        for callback in callbacks_of(self.trainer):
            if isinstance(callback, FreesMemory):
                callback.on_out_of_memory(self.trainer, self, batch)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Clip gradients. Lightning refuses to clip scaled gradients of fused optimizers."""
        if self.max_grad_norm is None:
            return
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and unscales_itself(optimizer):
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(self.net.parameters(), self.max_grad_norm)

    def on_validation_epoch_start(self) -> None:
        """Give all processes rank 0's batch-norm statistics, which checkpoints hold; in training each has its own."""
        if self.trainer.world_size > 1:
            distribute_bn(self.net, self.trainer.world_size)
        self.val_tally = ClassificationMetrics(self.device)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._steps_ahead.begin()
        logits = self._validated(batch)
        if logits is None:
            self._free_memory(batch)
            with explained("in validation", "lower data.batch_size"):
                logits = self._logits(batch.images)
        losses = losses_of(logits, batch.labels, loss="cross_entropy", smoothing=0.0)
        self.val_tally.add(losses, logits, batch.labels, batch.valid)

    def _validated(self, batch: Any) -> Tensor | None:
        """The logits, or None if the device's memory ran out. Then no frame of the error holds memory any more."""
        try:
            return self._logits(batch.images)
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            return None

    def _logits(self, images: Tensor) -> Tensor:
        """Of a validation."""
        logits: Tensor = self.net(images).float()
        return (logits + self.net(images.flip(-1)).float()) / 2 if self.val_flip else logits

    def on_train_epoch_end(self) -> None:
        self.nan_guard.stop_if_bad()

    def on_validation_epoch_end(self) -> None:
        means = self.val_tally.read(self._sum_of_processes)
        self.log_dict({f"val/{name}": torch.tensor(mean, dtype=torch.float64) for name, mean in means.items()})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add `network`, the tensors to use after training (averaged weights, if there are any) under timm's names.

        Raises NonFiniteLoss, before anything is written, if a loss or weight is not finite.
        """
        self.nan_guard.stop_if_worthless([*self.net.parameters(), *self.net.buffers()], self.trainer.global_step)
        weights = checkpoint["state_dict"]
        checkpoint["network"] = {name[4:]: weights[name] for name in weights if name.startswith("net.")}
        checkpoint["network_config"] = self.network_config
        checkpoint |= self.record
        checkpoint["train_sums"] = self._sum_of_processes(self.train_tally.sums)
        checkpoint |= self.micro_batches.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called before configure_optimizers, which is called before the optimizer's state is restored."""
        if not any(isinstance(each, WeightAveraging) for each in callbacks_of(self.trainer)):
            checkpoint["state_dict"] = checkpoint.get("current_model_state", checkpoint["state_dict"])
        self._restored_sums = checkpoint["train_sums"]
        self._saved_groups = checkpoint["optimizer_states"][0]["param_groups"]
        self.micro_batches.load_state_dict(checkpoint)

    def _sum_of_processes(self, sums: Tensor) -> Tensor:
        """The sum over all processes, in each process. Lightning's `reduce` would also wait for the device."""
        if self.trainer.world_size > 1:
            sums = sums.clone()
            torch.distributed.all_reduce(sums)
        return sums

    def _sync_gradients(self, last: bool) -> AbstractContextManager[None]:
        """Average gradients between processes only once per step, with the last micro-batch."""
        strategy = self.trainer.strategy
        if last or not isinstance(strategy, ParallelStrategy):
            return nullcontext()
        return strategy.block_backward_sync()
