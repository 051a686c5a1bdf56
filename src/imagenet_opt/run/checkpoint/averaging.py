"""Which weights a module holds while Lightning averages them."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging


def watch_averaging(trainer: Trainer) -> None:
    """Note from now on when averaged weights are in the module, as they are while it is validated.

    WeightAveraging swaps them by a method without a public name and keeps no record, and a validation may end anywhere.
    """
    for callback in _averaging(trainer):
        if "is_swapped" not in vars(callback):
            callback.is_swapped, callback._swap_models = False, _noting(callback, callback._swap_models)


def restore_training_weights(trainer: Trainer) -> None:
    """Put the weights that are trained back into the module, if averaged ones are there."""
    for callback in _averaging(trainer):
        if callback.is_swapped:
            callback._swap_models(trainer.lightning_module)


def _averaging(trainer: Trainer) -> list[Any]:
    return [callback for callback in trainer.callbacks if isinstance(callback, WeightAveraging)]  # type: ignore[attr-defined]


def _noting(callback: Any, swap: Any) -> Any:
    def swap_and_note(module: LightningModule) -> None:
        swap(module)
        callback.is_swapped = not callback.is_swapped

    return swap_and_note
