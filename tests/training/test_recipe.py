"""What a resume compares with the recipe of the run."""

from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.errors import CheckpointMismatch
from imagenet_opt.training.recipe import recipe_of, recipes_after
from tests.config.configs import tiny

AVERAGED = "callbacks.ema.decay=0.9"


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    return recipe_of(tiny(tmp_path, tmp_path))


def changed(tmp_path: Path, *overrides: str) -> dict[str, Any]:
    return recipe_of(tiny(tmp_path, tmp_path, *overrides))


@pytest.mark.parametrize(
    "override",
    [
        *("optimizer=adamw", "model.loss=bce_mean", "callbacks.mixing.mode=on", AVERAGED, "data.augment=rand-m7"),
        *("data.random_erasing=0.25", "data.random_shift=4", "data.train_crop=center"),
    ],
)
def test_another_kind_of_loss_mixing_augmentation_or_averaging_needs_a_confirmation(
    override: str, recipe: dict[str, Any], tmp_path: Path
) -> None:
    now, key = changed(tmp_path, override), override.partition("=")[0]
    for before, after in ((recipe, now), (now, recipe)):
        saved = {"global_step": 10, "recipes": {0: before}}
        with pytest.raises(CheckpointMismatch, match=rf"until step 10: {key}.* was .*change_recipe=true"):
            recipes_after(saved, after, is_confirmed=False)
        recipes, lines = recipes_after(saved, after, is_confirmed=True)
        assert recipes == {0: before, 10: after} and lines
    if override == AVERAGED:  # checkpoints of earlier versions have no recipe, but the average
        with pytest.raises(CheckpointMismatch, match=key):
            recipes_after({"global_step": 10, "current_model_state": {}}, recipe, is_confirmed=False)


def test_each_other_key_that_changes_what_is_learned_is_a_line(recipe: dict[str, Any], tmp_path: Path) -> None:
    silent = ("data.num_workers=3", "callbacks.checkpoint.keep=5", "model.set_to_none=false", "logger=tensorboard")
    saved = {"global_step": 10, "recipes": {0: recipe}}
    assert recipes_after(saved, changed(tmp_path, *silent), is_confirmed=False) == ({0: recipe}, [])
    keys = ("data.image_size=24", "model.label_smoothing=0.0", "trainer.limit_val_batches=1", "trainer.max_epochs=7")
    once = changed(tmp_path, *keys, "callbacks.mixing.mode='off'", "callbacks.mixing.mixup_alpha=1.0")
    recipes, lines = recipes_after(saved, once, is_confirmed=False)
    assert lines == [
        "from step 10 on: data.image_size 32 -> 24",
        "from step 10 on: model.label_smoothing 0.1 -> 0.0",
        "from step 10 on: trainer.limit_val_batches 1.0 -> 1",
        "from step 10 on: trainer.max_epochs 90 -> 7",
    ]
    assert recipes_after(saved | {"recipes": recipes}, recipe, is_confirmed=False)[0] == {0: recipe, 10: recipe}
