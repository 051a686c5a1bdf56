"""The keys of a configuration, judged before torch is imported: their names, numbers, and other programs' names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from importlib.util import find_spec
from math import isnan, nan
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from imagenet_opt.config.overrides import config_folder, train_program
from imagenet_opt.config.trust import entries
from imagenet_opt.errors import ConfigError, UnknownModel, did_you_mean
from imagenet_opt.object_storage import BUCKETS

_GROUPS = ("data", "model", "optimizer", "schedule", "trainer", "logger", "callbacks")
_OTHER_NAMES = {
    "a arch": "model.name",
    "aa auto_augment": "data.augment",
    "accum_freq grad_accum_steps gradient_accumulation_steps": "model.micro_batch_size",
    "amp amp_dtype use_amp": "trainer.precision",
    "b bs": "data.batch_size",
    "bce_loss": "model.loss",
    "checkpoint_hist": "callbacks.checkpoint.keep",
    "clip_grad clip_grad_norm max_norm": "model.max_grad_norm",
    "crop_pct": "data.val_crop_ratio",
    "cutmix": "callbacks.mixing.cutmix_alpha",
    "data_dir data_path datadir dataset_path imagenet_path": "data.root",
    "decay_milestones lr_steps": "schedule.milestones",
    "device": "trainer.accelerator",
    "drop drop_rate dropout": "model.options.drop_rate",
    "drop_path stochastic_depth": "model.drop_path_rate",
    "epochs num_epochs n_epochs": "trainer.max_epochs",
    "finetune initial_checkpoint weights": "model.init_from",
    "gp global_pool": "model.options.global_pool",
    "gpus ngpus num_gpus nproc_per_node": "trainer.devices",
    "img_size input_size resolution train_crop_size": "data.image_size",
    "j num_worker workers": "data.num_workers",
    "learning_rate base_lr": "optimizer.lr",
    "log_dir output output_dir save_dir": "hydra.run.dir",
    "log_interval print_freq": "trainer.log_every_n_steps",
    "lr_warmup_epochs warmup": "schedule.warmup_epochs",
    "mixup": "callbacks.mixing.mixup_alpha",
    "model_ema model_ema_decay ema_decay": "callbacks.ema.decay",
    "nnodes nodes": "trainer.num_nodes",
    "opt": "optimizer.name",
    "ra_reps ra_sampler aug_repeats": "data.repeated_augmentation",
    "random_erase reprob": "data.random_erasing",
    "resume": "resume_from",
    "smoothing": "model.label_smoothing",
    "sync_bn": "trainer.sync_batchnorm",
    "torchcompile": "callbacks.acceleration.compile",
    "val_crop_size": "data.val_image_size",
    "wd": "optimizer.weight_decay",
}
"""Names in the training scripts of timm, torchvision and others -> the key."""
_REFUSED = {
    "accumulate_grad_batches": (1, "set data.global_batch_size, and model.micro_batch_size for what fits at once"),
    "barebones": (False, "~callbacks.checkpoint, ~callbacks.progress_bar and logger=csv leave out single parts"),
    "benchmark": (None, "set callbacks.acceleration.cudnn_benchmark"),
    "callbacks": (None, "add a callback with +callbacks.NAME._target_=CLASS"),
    "enable_checkpointing": (True, "~callbacks.checkpoint saves nothing"),
    "enable_progress_bar": (True, "~callbacks.progress_bar shows none"),
    "fast_dev_run": (False, "try one step with trainer.max_steps=1, in another hydra.run.dir than the real run"),
    "gradient_clip_algorithm": (None, "model.max_grad_norm clips the norm of all gradients"),
    "gradient_clip_val": (None, "set model.max_grad_norm"),
    "limit_predict_batches": (None, "leave it out: a run predicts nothing"),
    "limit_test_batches": (None, "leave it out: a run tests nothing; imagenet-opt evaluate does"),
    "logger": (None, "choose with logger=csv, logger=[csv,tensorboard] or ~logger.wandb"),
    "model_registry": (None, "callbacks.checkpoint.mirror uploads the checkpoints"),
    "overfit_batches": (0, "each epoch has another order; put the images into a folder of their own (data.root)"),
    "use_distributed_sampler": (False, "leave it out: the data shares its images between processes itself"),
}
"""Options of Lightning's Trainer without a meaning here -> the value that changes nothing, and the remedy."""
_NEEDED = ("optimizer.name", "optimizer.lr", "optimizer.weight_decay", "data.batch_size", "data.image_size")
_NULL_OR: dict[str, type | tuple[str, ...]] = {
    "data.cache_gb data.max_mb_per_second model.max_grad_norm model.target_threshold optimizer.layer_decay": float,
    "schedule.warmup_factor callbacks.ema.decay callbacks.early_stop.stopping_threshold": float,
    "data.global_batch_size data.samples_per_epoch data.val_image_size model.micro_batch_size model.num_classes": int,
    "callbacks.checkpoint.every_n_steps callbacks.early_stop.patience callbacks.profiler.start_step": int,
    "callbacks.resolution_schedule.start": int,
    "optimizer.fused": bool,
    "data.augment": ("trivialaugment", "rand..."),
    "data.val_interpolation": ("bilinear", "bicubic", "area"),
    "callbacks.checkpoint.mirror": tuple(f"{scheme}://..." for scheme in BUCKETS),
    "callbacks.preemption.spot_notice_url": ("http://...", "https://..."),
    "callbacks.checkpoint.mode callbacks.early_stop.mode": ("max", "min"),
}
"""Keys whose default is null -> the type of their other values, or these values; ... stands for any ending."""
_BOOLS = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}
_MORE_THAN_BOOLS = ("model.blurpool", "trainer.deterministic")
_FURTHER = (
    *("detect_anomaly", "inference_mode", "max_time", "min_epochs", "min_steps", "plugins", "profiler"),
    *("reload_dataloaders_every_n_epochs", "sync_batchnorm"),
)
"""Options of Lightning's Trainer that work, and have no key in conf/."""


def check_keys(config: Mapping[str, Any], values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse keys that nobody reads, options of Lightning that do nothing here, texts in place of numbers, and names
    that timm does not have. config: not resolved; values: its `entries`. What a `_target_` takes is asked later, in
    config/build.py.

    Returns the values that need the form of their default: 1e3 is 1000, "64" is 64, and off is false. Raises
    ConfigError, UnknownModel.
    """
    text, groups = str(config), {folder.name for folder in config_folder().iterdir() if folder.is_dir()}
    for key in config.keys() - defaults().keys() - groups:
        if not re.search(rf"\${{{re.escape(str(key))}[}}.]", text):
            raise ConfigError(unknown(str(key), config[key]))
    for name, value in (config.get("model") or {}).items():
        if f"model.{name}" not in defaults():
            raise ConfigError(unknown(f"model.{name}", value))
    for name, value in (config.get("trainer") or {}).items():
        neutral, remedy = _REFUSED.get(name, (value, ""))
        if value is not None and value != neutral:
            raise ConfigError(f"trainer.{name}={value} does not work here; {remedy}")
    typed = [(key, value, _typed(key, value)) for key, value in values]
    if not config.get("allow_targets"):  # a module of the user may register networks and optimizers
        _check_name(config, "model", "models/*.py", r"@register_model\s+def (\w+)")
        _check_name(config, "optimizer", "optim/_optim_factory.py", r"name='(\w+)'")
    return {key: meant for key, value, meant in typed if type(meant) is not type(value)}


def _typed(key: str, value: Any) -> Any:
    kind = next((kind for keys, kind in _NULL_OR.items() if key in keys.split()), type(defaults().get(key)))
    if value is None or "${" in str(value):
        return value
    if isinstance(kind, tuple) and not str(value).startswith(tuple(word.rstrip(".") for word in kind)):
        raise ConfigError(f"{key}={value} must be null, or one of {', '.join(kind)}")
    if kind is bool and isinstance(value, str):
        if value.lower() not in _BOOLS and key not in _MORE_THAN_BOOLS:
            raise ConfigError(f"{key}={value} must be true or false")
        return _BOOLS.get(value.lower(), value)
    if kind not in (int, float) or value == "auto" or ":" in str(value):
        return value  # also of a time, such as trainer.val_check_interval=00:00:30:00
    try:
        number = float("text" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        number = nan
    if isnan(number):
        raise ConfigError(f"{key}={value} must be a number")
    if kind is int and not number.is_integer():
        raise ConfigError(f"{key}={value} must be a whole number")
    if isinstance(value, int):
        return value
    return int(number) if kind is int or str(value).isdecimal() else number


def is_needed(key: str) -> bool:
    """Whether no configuration may lack this key or group."""
    group, _, name = key.partition(".")
    if not name:
        return key in defaults() or key in _GROUPS
    return (group in ("model", "trainer") and key in defaults().keys() - {"model.options"}) or key in _NEEDED


def _check_name(config: Mapping[str, Any], group: str, files: str, pattern: str) -> None:
    """Look for the name in timm's source, which takes 0.03 s instead of the seconds of an import. A name that stands
    anywhere in quotes may be an old one, which timm replaces."""
    name, timm = (config.get(group) or {}).get("name"), find_spec("timm")
    if not isinstance(name, str) or "${" in name or timm is None or not timm.submodule_search_locations:
        return
    architecture = name.partition(".")[0]
    source = "".join(file.read_text() for file in Path(timm.submodule_search_locations[0]).glob(files))
    known = re.findall(pattern, source)
    if known and architecture not in known and f"'{architecture}'" not in source and not name.startswith("bnb"):
        hint = did_you_mean(architecture, known, f"see timm.list_{group}s()")
        error = UnknownModel if group == "model" else ConfigError
        raise error(f"timm has no {group} {name!r} ({group}.name); {hint}")


def unknown(key: str, value: Any = None) -> str:
    """A sentence about a key that the configuration does not have. value: its value; None if unknown."""
    keys, last = defaults(), key.rpartition(".")[2].replace("-", "_")
    near, typed = _of_name(last), "" if value is None else f"={value}"
    groups = sorted(folder.name for folder in config_folder().iterdir() if folder.is_dir())
    if key in keys:
        group = key.partition(".")[0]
        files = [file.stem for file in _files(group) if key in dict(_content(file, group))]
        hint = f"add {group}={files[0]}" if files and files != ["loading"] else "--cfg job shows the keys that it has"
        hint += f", or +{key}{typed} if its class takes it" if group == "optimizer" else ""
        return f"there is no key {key} in the {group} of this configuration; {hint}"
    if last in _REFUSED:
        hint = _REFUSED[last][1]
    elif last in _FURTHER:
        hint = f"add it with a plus: +trainer.{last}{typed}"
    elif near is not None:
        hint = f"did you mean {near}{typed}?"
    elif similar := did_you_mean(key, [known for known in [*keys, *groups] if is_like(key, known)], ""):
        hint = similar
    elif key.startswith(("optimizer.", "schedule.", "logger.", "callbacks.")):
        hint = f"if its class takes it, add it with a plus: +{key}{typed}"
    elif key.startswith("model."):
        hint = f"options of timm's network are model.options.{last}{typed}"
    else:
        hint = f"{train_program()} --cfg job shows every key"
    return f"there is no key {key}; {hint}"


def unknown_flag(words: Sequence[str]) -> str:
    """A sentence about a flag that is not there, and that a key may replace. words: the flag and what follows it."""
    name, _, value = words[0].lstrip("-").partition("=")
    if not value and words[1:] and "=" not in words[1] and not words[1].startswith("-"):
        value = words[1]
    return f"{words[0]}: options are KEY=VALUE, without dashes; {unknown(name, value or None).partition('; ')[2]}"


def _of_name(last: str) -> str | None:
    """The key with this last part, or with this name in other programs; None if there is none, or if several are as
    good."""
    others = [key for names, key in _OTHER_NAMES.items() if last in names.split()]
    same = [key for key in defaults() if key.rpartition(".")[2] == last]
    ranks = {key: (key.startswith(("callbacks.", "logger.")), key.count(".")) for key in same}
    best = [key for key in same if ranks[key] == min(ranks.values())]
    return best[0] if len(best) == 1 else next(iter(others), None)


def is_like(key: str, known: str) -> bool:
    """Whether the last parts of two keys are alike: an equal group makes no key a good suggestion."""
    return SequenceMatcher(None, key.rpartition(".")[2], known.rpartition(".")[2]).ratio() >= 0.6


@cache
def defaults() -> dict[str, Any]:
    """Every key of conf/ with a default, not resolved. Of several files of a group the first has precedence."""
    found = dict(_content(config_folder() / "train.yaml"))
    for group in _GROUPS:
        for file in _files(group):
            found = dict(_content(file, group)) | found
    return found


def _files(group: str) -> list[Path]:
    loading = [config_folder() / "loading.yaml"] if group == "data" else []
    return [*loading, *sorted((config_folder() / group).glob("*.yaml"))]


def _content(file: Path, group: str = "") -> list[tuple[str, Any]]:
    """(dotted key, value) of everything that is no mapping with keys."""
    content: Any = OmegaConf.to_container(OmegaConf.load(file))
    return entries({key: value for key, value in content.items() if key != "defaults"}, group, lists=False)
