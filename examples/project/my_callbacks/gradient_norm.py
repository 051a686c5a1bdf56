"""A callback of your own."""

import logging

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

log = logging.getLogger(__name__)


class GradientNorm(Callback):
    """Prints and logs `train/gradient_norm`: the Euclidean norm of all gradients, at each logging step."""

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if (trainer.global_step + 1) % trainer.log_every_n_steps == 0:
            gradients = [weight.grad for weight in pl_module.parameters() if weight.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            pl_module.log("train/gradient_norm", norm)  # metrics.csv and W&B
            log.info("gradient norm %.3g", norm)  # the terminal and train.log
