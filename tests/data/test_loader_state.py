"""The state of a loader: where a resumed loader continues, in a plain loop and in Lightning's Trainer, and which states
it refuses."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.data.batch import Batch
from imagenet_opt.data.prefetcher import DevicePrefetcher
from imagenet_opt.errors import CheckpointMismatch, ConfigError
from tests.conftest import write_images
from tests.data.conftest import MakeLoader, assert_equal
from tests.data.fits import Recorder, fit

EPOCHS = 2


def epochs(made: DevicePrefetcher, states: list[dict[str, int]] | None = None) -> list[Batch]:
    """The batches of a plain loop that continues after the loaded state. states: gets the state after each batch, and
    after each epoch."""
    found = []
    for _ in range(made.epoch, EPOCHS):
        for batch in made:
            found.append(batch.clone())
            if states is not None:
                states.append(made.state_dict())
        if states is not None:
            states.append(made.state_dict())
    return found


@pytest.mark.parametrize(("workers", "resumed"), [(0, 2), (2, 0)])
def test_a_resumed_loader_delivers_the_rest(images_root: Path, loader: MakeLoader, workers: int, resumed: int) -> None:
    first = loader(images_root, batch_size=13, num_workers=workers)
    states = [first.state_dict()]
    whole = epochs(first, states)
    assert [sorted(int(i) for batch in whole[k : k + 3] for i in batch.indices) for k in (0, 3)] == 2 * [[*range(39)]]
    assert [(state["epoch"], state["step"]) for state in states] == [
        *((0, 0), (0, 1), (0, 2), (0, 3), (1, 0)),
        *((1, 1), (1, 2), (1, 3), (2, 0)),
    ]
    second = loader(images_root, batch_size=13, num_workers=resumed)
    for state in states:
        second.load_state_dict(state)
        assert second.state_dict() == state
        assert_equal(epochs(second), whole[3 * state["epoch"] + state["step"] :])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shuffle": "block", "batch_size": 8}, "images of a block was 1, is now 8"),
        ({"seed": 4}, "seed was 3, is now 4"),
        ({"batch_size": 8}, "images of a global batch was 6, is now 8"),
        ({"samples_per_epoch": 12}, "data.samples_per_epoch was 0, is now 12"),
        ({"repeated_augmentation": 3}, "data.repeated_augmentation was 1, is now 3"),
        ({"num_classes": 2}, "training images was 39, is now 26; checksum of their labels in order was"),
        ({"renamed": True}, "batches: checksum of their class names was"),
        ({"weights": range(1, 40)}, "checksum of their weights was 0, is now"),
        ({"indices": [1, 0, *range(2, 39)]}, "checksum of the chosen indices was 0, is now"),
        ({"targets": range(39)}, "checksum of their labels in order was"),
    ],
)
def test_a_state_of_another_order_is_refused(
    images_root: Path, tmp_path: Path, loader: MakeLoader, change: dict[str, Any], words: str
) -> None:
    first = loader(images_root)
    state = first.state_dict()
    if num_classes := change.pop("num_classes", None):
        images_root = write_images(tmp_path / "other", num_classes=num_classes, per_class=13)
    if change.pop("renamed", False):
        images_root = shutil.copytree(images_root, tmp_path / "renamed")
        (images_root / "train/class0").rename(images_root / "train/last")  # another order, as many images of each class
    other = loader(images_root, **change)
    with pytest.raises(CheckpointMismatch, match=re.escape(words)) as refused:
        other.load_state_dict(state)
    assert "\n" not in str(refused.value)
    assert "data.shuffle" in str(refused.value) and "data.root (packed or not)" in str(refused.value)
    assert other.state_dict()["step"] == 0
    with pytest.raises(CheckpointMismatch):
        first.load_state_dict(other.state_dict())


@pytest.mark.parametrize("place", [{"step": 7}, {"step": -1}, {"epoch": 0.5}])
def test_a_state_outside_of_the_epochs_is_refused(images_root: Path, loader: MakeLoader, place: dict[str, Any]) -> None:
    made = loader(images_root)
    with pytest.raises(CheckpointMismatch, match=r"epochs of 6 batches"):
        made.load_state_dict(made.state_dict() | place)
    with pytest.raises(CheckpointMismatch, match=r"no state of such a loader, since it lacks seed"):
        made.load_state_dict({"epoch": 1})
    with pytest.raises(ConfigError, match="epoch=-1"):
        made.set_epoch(-1)


class AsksForSteps(Recorder):
    """Lightning makes the loader for this schedule, before it restores its loops."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        steps = int(self.trainer.estimated_stepping_batches)
        return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=steps)]


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("is_ours", [False, True])
def test_a_fit_resumes_at_the_next_batch(images_root: Path, tmp_path: Path, loader: MakeLoader, is_ours: bool) -> None:
    """From Lightning's checkpoints and, with such a schedule too, from those of our callback."""

    def saving(name: str) -> Callback:
        if is_ours:
            return Checkpoint(folder=str(tmp_path / name), every_n_steps=2, keep=9)
        options = {"every_n_train_steps": 1, "save_top_k": -1, "save_on_train_epoch_end": False}
        return ModelCheckpoint(tmp_path / name, "{step}", **options)

    module = AsksForSteps if is_ours else Recorder
    made = loader(images_root, batch_size=13, image_size=16, num_workers=0 if is_ours else 2)
    options = {"max_epochs": EPOCHS, "enable_checkpointing": True, "limit_val_batches": 0}
    whole = fit(made, saving("whole"), module=module(), **options).trained
    assert whole == [(epoch, step, 16) for epoch in range(EPOCHS) for step in range(3)]
    for checkpoint in (tmp_path / "whole").rglob("*step*.ckpt"):
        done = torch.load(checkpoint, weights_only=True)["global_step"]
        made.sampler.seek(0, 0)  # as a new loader
        resumed = fit(made, saving(f"from_{done}"), module=module(), resume=checkpoint, **options)
        assert resumed.trained == whole[done:]
