"""Tracks whether a module holds its trained or its averaged weights under Lightning's WeightAveraging."""

from collections.abc import Callable
from functools import partial
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging


def watch_averaging(trainer: Trainer) -> None:
    """Record whether the module holds averaged weights, which WeightAveraging swaps in for validation.

    WeightAveraging swaps the weights in a private method and keeps no record, and a validation may be interrupted.
    """
    for callback in _averaging(trainer):
        if "is_swapped" not in vars(callback):
            callback.is_swapped = False
            callback._swap_models = partial(_swap_and_record, callback, callback._swap_models)


def restore_training_weights(trainer: Trainer) -> None:
    """Put the trained weights back into the module if it holds averaged weights."""
    for callback in _averaging(trainer):
        if callback.is_swapped:
            callback._swap_models(trainer.lightning_module)


def _averaging(trainer: Trainer) -> list[Any]:
    return [callback for callback in trainer.callbacks if isinstance(callback, WeightAveraging)]  # type: ignore[attr-defined]


def _swap_and_record(callback: Any, swap: Callable[[LightningModule], None], module: LightningModule) -> None:
    swap(module)
    callback.is_swapped = not callback.is_swapped
