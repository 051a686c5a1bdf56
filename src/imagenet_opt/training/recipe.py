"""The recipe of a run: the values that change what is learned. Checkpoints hold it, and a resume compares it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig

from imagenet_opt.config.build import plain
from imagenet_opt.errors import CheckpointMismatch
from imagenet_opt.run.checkpoint.files import word

Recipe = dict[str, Any]
_WITHOUT_EFFECT = {
    "model": {"pretrained", "init_from", "set_to_none"},
    "data": {
        *("_target_", "root", "train_folder", "val_folder", "cache_dir", "batch_size", "global_batch_size"),
        *("num_workers", "prefetch_factor", "reads_in_flight", "region_decode", "resize_on", "copies", "cache_gb"),
        *("max_pixels", "on_bad_sample", "max_bad_fraction", "read_timeout", "added_latency_ms", "max_mb_per_second"),
    },
    "optimizer": {"fused"},
    "schedule": {"_partial_"},
}
"""Keys of the groups that change nothing that is learned, or that the order of samples checks. All others count."""
_WATCHING = {
    *("acceleration", "bottleneck", "checkpoint", "early_stop", "gpu_utilization", "preemption", "profiler"),
    *("progress_bar", "rehearsal", "throughput", "timeline"),
}
"""Callbacks that change nothing that is learned."""
_TRAINER = ("precision", "max_epochs", "max_steps", "limit_val_batches", "sync_batchnorm")
KINDS: dict[str, Callable[[Any], Any]] = {
    "optimizer.name": str,
    "model.loss": str,
    "callbacks.mixing.mode": lambda mode: mode not in (False, "off"),
    "callbacks.ema.decay": lambda decay: decay is not None,
    "data.augment": lambda policy: str(policy).partition("-")[0],
    "data.random_erasing": bool,
    "data.random_shift": bool,
    "data.train_crop": str,
}
"""Keys whose kind a resume changes only after a confirmation -> the kind of a value."""
_UNKNOWN = "the checkpoint of an earlier version does not say its recipe, so changes of the recipe are not listed"


def recipe_of(config: DictConfig) -> Recipe:
    """The recipe of a run that was built from `config`, as plain values by group and key."""
    recipe: Recipe = {
        group: {key: value for key, value in plain(config[group]).items() if key not in without}
        for group, without in _WITHOUT_EFFECT.items()
    }
    callbacks = {name: plain(node) for name, node in config.callbacks.items() if name not in _WATCHING}
    if callbacks.get("mixing", {}).get("mode") in (False, "off"):
        del callbacks["mixing"]
    trainer = {key: config.trainer.get(key) for key in _TRAINER}
    trainer["limit_val_batches"] = str(trainer["limit_val_batches"])  # 1 is a batch, and 1.0 all of them
    return recipe | {"callbacks": callbacks, "trainer": trainer, "seed": config.seed}


def recipes_after(
    saved: Mapping[str, Any], recipe: Recipe, *, is_confirmed: bool
) -> tuple[dict[int, Recipe], list[str]]:
    """The recipes of a run that resumes from the checkpoint `saved` with `recipe`, by the first step of each; and a
    line for each key that changes.

    Raises CheckpointMismatch for another kind of a key of KINDS, unless the user has confirmed the change.
    """
    step, recipes = saved["global_step"], dict(saved.get("recipes", {}))
    last = recipes[max(recipes)] if recipes else None
    if last == recipe:
        return recipes, []
    _check_kinds(saved, last, recipe, step, is_confirmed=is_confirmed)
    if last is None:
        return {step: recipe}, [_UNKNOWN]
    lines = [f"from step {step} on: {key} {word(old)} -> {word(new)}" for key, old, new in _changes(last, recipe)]
    return {begin: each for begin, each in recipes.items() if begin < step} | {step: recipe}, lines


def _check_kinds(saved: Mapping[str, Any], last: Recipe | None, now: Recipe, step: int, *, is_confirmed: bool) -> None:
    values = {key: (_value(last, key) if last else _value(now, key), _value(now, key)) for key in KINDS}
    if last is None and ("current_model_state" in saved) != (values["callbacks.ema.decay"][1] is not None):
        values["callbacks.ema.decay"] = ("on", None) if "current_model_state" in saved else (None, "on")
    changed = [key for key, (old, new) in values.items() if KINDS[key](old) != KINDS[key](new)]
    if changed and not is_confirmed:
        fits = "; the new optimizer must take the state of the old" if "optimizer.name" in changed else ""
        texts = [f"{key} was {word(values[key][0])}, is now {word(values[key][1])}" for key in changed]
        raise CheckpointMismatch(
            f"the run was trained with another recipe until step {step}: {'; '.join(texts)}. Set {', '.join(changed)} "
            f"as before, or confirm with change_recipe=true that the run goes on with the new recipe{fits}"
        )


def _value(recipe: Recipe, key: str) -> Any:
    """The value of a key such as model.loss; None if the recipe has no such key; off without mixing."""
    value: Any = recipe
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return "off" if value is None and key == "callbacks.mixing.mode" else value


def _changes(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The keys whose values differ, with both values; a group that one of the two lacks is one value."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(old.keys() | new.keys(), key=str):
            yield from _changes(old.get(name), new.get(name), f"{key}.{name}".lstrip("."))
    elif old != new:
        yield key, old, new
