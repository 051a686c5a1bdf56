"""Computes the size of a checkpoint before a run."""

import logging
import warnings

from omegaconf import DictConfig

from imagenet_opt.probe.memory_need import training_parts
from imagenet_opt.probe.step_memory import state_bytes

log = logging.getLogger(__name__)


def checkpoint_bytes(config: DictConfig, num_classes: int) -> int | None:
    """Bytes of the tensors in a checkpoint: weights, averaged weights if the run has them, and the optimizer's state.

    None if the size cannot be computed. The file has some KB more: names, the archive's index, random states.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weights, optimizer = state_bytes(*training_parts(config, num_classes, batch_size=1))
    except Exception as error:  # any network or optimizer may raise
        log.debug(f"the size of a checkpoint is unknown: {type(error).__name__}: {error}")
        return None
    return weights * (2 if config.callbacks.get("ema") else 1) + optimizer
