"""The LightningModule: one loader batch is one optimizer step."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from imagenet_opt.errors import ConfigError
from imagenet_opt.model.schedule import Schedule
from imagenet_opt.model.tally import Tally
from imagenet_opt.run.logging_step import is_logging_step


class Classifier(LightningModule):
    """Trains `net` by cross-entropy with manual optimization.

    A batch has `images` (float, N x 3 x H x W), `labels` (int64 (N,) or soft (N, C)) and `valid` (bool (N,)).
    optimizer: (network, device=...) -> Optimizer. schedule: step -> factor, see model/schedule.py.
    micro_batch_size: images per forward and backward; None for the whole batch. The step stays the same, so a
    smaller memory changes no recipe (batch norm alone sees fewer images at once).
    max_grad_norm: gradients are scaled down to this norm; None for never.
    network_config: plain values from which the network can be built again; kept in the checkpoint.

    Logs train/loss, train/acc1 (means since the last logging step) and val/loss, val/acc1, val/acc5 (shares).
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        optimizer: Callable[..., Optimizer],
        schedule: Schedule,
        label_smoothing: float = 0.0,
        micro_batch_size: int | None = None,
        max_grad_norm: float | None = None,
        network_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if micro_batch_size is not None and micro_batch_size < 1:
            raise ConfigError(
                f"model.micro_batch_size={micro_batch_size} must be at least 1, or null for the whole batch"
            )
        if not 0 <= label_smoothing < 1:
            raise ConfigError(f"model.label_smoothing={label_smoothing} must be at least 0 and below 1")
        if max_grad_norm is not None and max_grad_norm <= 0:
            raise ConfigError(f"model.max_grad_norm={max_grad_norm} must be above 0, or null for no clipping")
        self.automatic_optimization = False
        self.net = net
        self.optimizer = optimizer
        self.schedule = schedule
        self.label_smoothing = label_smoothing
        self.micro_batch_size = micro_batch_size
        self.max_grad_norm = max_grad_norm
        self.network_config = network_config or {}
        self._restored_sums: Tensor | None = None

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.net, device=self.trainer.strategy.root_device)
        self._asked = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
        self.trainer.fit_loop.setup_data()  # else the number of batches may not be known yet
        num_steps = self.trainer.estimated_stepping_batches
        if num_steps == float("inf"):
            raise ConfigError("a run without end has no schedule; set trainer.max_epochs or trainer.max_steps")
        factor = partial(
            self.schedule, num_steps=int(num_steps), steps_per_epoch=float(self.trainer.num_training_batches)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"},
        }

    def on_fit_start(self) -> None:
        self.train_tally = Tally(self.device)
        if self._restored_sums is not None:
            self.train_tally.sums = self._restored_sums.to(self.device)

    def on_train_start(self) -> None:
        """A checkpoint brings its own learning rate, weight decay and so on; what is asked for now wins."""
        optimizer: Any = self.optimizers()
        scheduler: Any = self.lr_schedulers()
        changed: dict[str, str] = {}
        for i, (group, asked) in enumerate(zip(optimizer.param_groups, self._asked, strict=True)):
            had = group | {"lr": scheduler.base_lrs[i]}
            changed |= {name: f"{name} {had[name]} -> {asked[name]}" for name in asked if had[name] != asked[name]}
            factor = scheduler.lr_lambdas[i](scheduler.last_epoch)
            group |= asked | {"initial_lr": asked["lr"], "lr": asked["lr"] * factor}
            scheduler.base_lrs[i] = asked["lr"]
        if changed:
            rank_zero_info(f"optimizer, from step {self.trainer.global_step} on: {', '.join(changed.values())}")

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        scheduler: Any = self.lr_schedulers()
        num_images = len(batch.images)
        size = self.micro_batch_size or num_images
        for start in range(0, num_images, size):
            part = slice(start, start + size)
            with self._sync_gradients(start + size >= num_images):
                logits = self.net(batch.images[part]).float()
                losses = self._losses(logits, batch.labels[part], self.label_smoothing)
                self.manual_backward(losses.sum() / num_images)
            self.train_tally.add(losses.detach(), logits.detach(), batch.labels[part], batch.valid[part])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        if is_logging_step(self.trainer):
            means = self.train_tally.read()
            self.train_tally.reset()
            self.log_dict({f"train/{name}": means[name] for name in ("loss", "acc1")}, sync_dist=True)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Clips gradients, as Lightning refuses to beside fused optimizers, whose scaled gradients it leaves alone."""
        if self.max_grad_norm is None:
            return
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(self.net.parameters(), self.max_grad_norm)

    def on_validation_epoch_start(self) -> None:
        self.val_tally = Tally(self.device)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        logits = self.net(batch.images).float()
        self.val_tally.add(self._losses(logits, batch.labels, 0.0), logits, batch.labels, batch.valid)

    def on_validation_epoch_end(self) -> None:
        self.val_tally.sums = self.trainer.strategy.reduce(self.val_tally.sums, reduce_op="sum")
        self.log_dict({f"val/{name}": mean for name, mean in self.val_tally.read().items()})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """`network` holds the finished network's tensors under timm's own names: averaged ones, if there are any."""
        weights = checkpoint["state_dict"]
        checkpoint["network"] = {
            name.removeprefix("net."): weights[name] for name in weights if name.startswith("net.")
        }
        checkpoint["network_config"] = self.network_config
        checkpoint["train_sums"] = self.train_tally.sums

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._restored_sums = checkpoint["train_sums"]

    def _losses(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        return cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)

    def _sync_gradients(self, last: bool) -> AbstractContextManager[None]:
        """Between processes gradients are averaged once a step, with the last micro-batch."""
        strategy = self.trainer.strategy
        if last or not hasattr(strategy, "block_backward_sync"):
            return nullcontext()
        return strategy.block_backward_sync()  # type: ignore[no-any-return]
