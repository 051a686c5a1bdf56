"""Launchers and sweepers of other packages (the extra `sweep`): what a recipe may set, and what their errors mean."""

import importlib.util
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imagenet_opt.config.allowed_targets import leaves
from imagenet_opt.errors import ConfigError, last_error_line

INSTALL = 'pip install "imagenet-opt[sweep]"'
_SUBMITIT, _OPTUNA = "hydra_plugins.hydra_submitit_launcher", "hydra_plugins.hydra_optuna_sweeper"
TARGETS = (
    f"{_SUBMITIT}.submitit_launcher.LocalLauncher",
    f"{_SUBMITIT}.submitit_launcher.SlurmLauncher",
    f"{_OPTUNA}.optuna_sweeper.OptunaSweeper",
    *(f"optuna.samplers.{name}Sampler" for name in ("CmaEs", "Grid", "MOTPE", "NSGAII", "Random", "TPE")),
)
"""What Hydra may build of them."""
_LAUNCHER = (
    *("account", "comment", "constraint", "exclude", "name", "partition", "qos", "stderr_to_stdout"),
    *("array_parallelism", "cpus_per_gpu", "cpus_per_task", "gpus_per_node", "gpus_per_task", "gres", "nodes"),
    *("max_num_timeout", "mem_gb", "mem_per_cpu", "mem_per_gpu", "signal_delay_s", "tasks_per_node", "timeout_min"),
)
"""Keys of hydra.launcher that a recipe may set. Others, such as setup or srun_args, are commands or places to write."""
_OWN = {
    "submitit_folder": "${hydra.sweep.dir}/.submitit/%j",
    "srun_args[0]": "--cpus-per-task=${hydra.launcher.cpus_per_task}",
}
"""What conf/hydra/launcher/slurm.yaml says of the others."""
_TYPED = ("custom_search_space", "storage")
"""Keys of hydra.sweeper that name code, or a place to write."""


def check_plugins(config: DictConfig, overrides: list[str]) -> None:
    """Raise ConfigError if a package is missing, or if a recipe sets what only the user may set."""
    for part in ("launcher", "sweeper"):
        target = (config.hydra[part] or {}).get("_target_")
        if target in TARGETS:
            raw: Any = OmegaConf.to_container(config.hydra[part])
            _check_launcher(config, raw, overrides) if part == "launcher" else _check_sweeper(raw, overrides)
            _check_installed(target, part)


def _check_installed(target: str, part: str) -> None:
    with suppress(ModuleNotFoundError):  # raised where there is no plugin at all
        if importlib.util.find_spec(target.rpartition(".")[0]) is not None:
            return
    raise ConfigError(f"hydra/{part}: {target} needs a package that is not installed: {INSTALL}")


def _check_launcher(config: DictConfig, raw: dict[str, Any], overrides: list[str]) -> None:
    """Check the launcher's texts: they become lines of a shell script, so none may contain a line break."""
    for place, _, value in leaves(raw, "hydra.launcher"):
        key = place.removeprefix("hydra.launcher.")
        free = value is None or key in (*_LAUNCHER, "_target_") or _OWN.get(key) == value
        if not free and not _typed(place, overrides):
            raise _refusal(place)
    if raw.get("cpus_per_task") is None and _OWN["srun_args[0]"] in (raw.get("srun_args") or []):
        raise ConfigError("hydra.launcher.cpus_per_task=null: srun needs a number; or add hydra.launcher.srun_args=[]")
    resolved = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    for place, _, value in leaves(resolved, "hydra.launcher"):
        if isinstance(value, str) and not value.isprintable():
            raise ConfigError(f"{place} holds control characters; expected words of one line")


def _check_sweeper(raw: dict[str, Any], overrides: list[str]) -> None:
    if raw.get("search_space"):
        raise ConfigError("hydra.sweeper.search_space is not used here; use hydra.sweeper.params or overrides")
    for place, _, value in leaves({key: raw.get(key) for key in _TYPED}, "hydra.sweeper"):
        if value is not None and not _typed(place, overrides):
            raise _refusal(place)


def _typed(place: str, overrides: list[str]) -> bool:
    """Whether the command line sets this key, or the list that contains it."""
    key = place.partition("[")[0]
    return any(override.lstrip("+").startswith(f"{key}=") for override in overrides)


def _refusal(place: str) -> ConfigError:
    key = place.partition("[")[0]
    return ConfigError(
        f"a recipe may not set {place}, which can run code or write anywhere; to set it, use its full name on the "
        f"command line: ++{key}=..."
    )


def end_of_multirun(error: Exception) -> str | None:
    """Why a launcher or sweeper gave up, if `error` is one of theirs; else None."""
    if isinstance(error, ValueError) and str(error) == "No trials are completed yet.":
        return "no job of the search succeeded"
    if not type(error).__module__.startswith("submitit."):
        return None
    first, _, rest = str(error).strip().partition("\n")
    reason = last_error_line(rest)
    return ": ".join([first.rstrip(":"), *([reason] if reason else [])])
