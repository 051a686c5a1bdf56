"""Checks for the launchers and sweepers of the extras `sweep` and `ray`: the keys that a recipe may set, and error
messages."""

import importlib.util
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imagenet_opt.config.allowed_targets import leaves
from imagenet_opt.errors import ConfigError, last_error_line

INSTALL, _INSTALL_RAY = (f'pip install "imagenet-opt[{extra}]"' for extra in ("sweep", "ray"))
_SUBMITIT, _OPTUNA = "hydra_plugins.hydra_submitit_launcher", "hydra_plugins.hydra_optuna_sweeper"
RAY = "hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher"
TARGETS = (
    RAY,
    f"{_SUBMITIT}.submitit_launcher.LocalLauncher",
    f"{_SUBMITIT}.submitit_launcher.SlurmLauncher",
    f"{_OPTUNA}.optuna_sweeper.OptunaSweeper",
    *(f"optuna.samplers.{name}Sampler" for name in ("CmaEs", "Grid", "MOTPE", "NSGAII", "Random", "TPE")),
)
"""Classes of these packages that Hydra may build."""
_LAUNCHER = (
    *("account", "comment", "constraint", "exclude", "name", "partition", "qos", "stderr_to_stdout"),
    *("array_parallelism", "cpus_per_gpu", "cpus_per_task", "gpus_per_node", "gpus_per_task", "gres", "nodes"),
    *("max_num_timeout", "mem_gb", "mem_per_cpu", "mem_per_gpu", "signal_delay_s", "tasks_per_node", "timeout_min"),
    *("ray.remote.max_retries", "ray.remote.num_cpus", "ray.remote.num_gpus"),
)
"""Keys of hydra.launcher that a recipe may set. Other keys, such as setup, contain commands or paths of new files."""
_OWN = {
    "submitit_folder": "${hydra.sweep.dir}/.submitit/%j",
    "srun_args[0]": "--cpus-per-task=${hydra.launcher.cpus_per_task}",
    "ray.init.address": "auto",
}
"""Other keys of hydra.launcher -> values that they have in conf/hydra/launcher/."""
_WHOLE = {"num_gpus": 0, "num_cpus": 1}
"""Keys of hydra.launcher.ray.remote -> least values."""
_TYPED = ("custom_search_space", "storage")
"""Keys of hydra.sweeper that name code or the path of a new file."""


def check_plugins(config: DictConfig, overrides: list[str]) -> None:
    """Raise ConfigError if a package is missing, or if a recipe sets a key that only the user may set."""
    for part, check in (("launcher", _check_launcher), ("sweeper", _check_sweeper)):
        target = (config.hydra[part] or {}).get("_target_")
        if target in TARGETS:
            check(config.hydra[part], overrides)
            if not _is_installed(target.rpartition(".")[0]):
                install = _INSTALL_RAY if target == RAY else INSTALL
                raise ConfigError(f"hydra/{part}: {target} needs a package that is not installed: {install}")
    if config.hydra.launcher and config.hydra.launcher.get("_target_") == RAY:
        _check_ray(config.hydra.launcher.ray.remote, str(config.hydra.sweep.dir))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # find_spec imports the packages above the module
        return False


def _check_launcher(launcher: DictConfig, overrides: list[str]) -> None:
    """Check the keys and texts of the launcher, which become lines of a shell script: no text has a line break."""
    raw: Any = OmegaConf.to_container(launcher)
    for place, _, value in leaves(raw, "hydra.launcher"):
        key = place.removeprefix("hydra.launcher.")
        if not (value is None or key in (*_LAUNCHER, "_target_") or _OWN.get(key) == value):
            _require_typed(place, overrides)
    if raw.get("cpus_per_task") is None and _OWN["srun_args[0]"] in (raw.get("srun_args") or []):
        raise ConfigError("hydra.launcher.cpus_per_task=null: srun needs a number; or add hydra.launcher.srun_args=[]")
    for place, _, value in leaves(OmegaConf.to_container(launcher, resolve=True), "hydra.launcher"):
        if isinstance(value, str) and not value.isprintable():
            raise ConfigError(f"{place} holds control characters; expected words of one line")


def _check_ray(remote: DictConfig, sweep_dir: str) -> None:
    """Check that a job asks for whole GPUs and CPUs, and that all hosts know its folder. sweep/ray_hosts.py checks the
    hosts."""
    for key, least in _WHOLE.items():
        value = remote.get(key)
        if type(value) is not int or value < least:
            raise ConfigError(
                f"hydra.launcher.ray.remote.{key}={value} must be a whole number, at least {least}: jobs that share a "
                "host or a GPU slow each other down, so their images per second would be wrong"
            )
    if not Path(sweep_dir).is_absolute():
        raise ConfigError(
            f"hydra.sweep.dir={sweep_dir} must be the full path of a folder that all hosts of Ray share, since Ray "
            "starts jobs in another working folder; such as hydra.sweep.dir=/fsx/runs/sweep"
        )


def _check_sweeper(sweeper: DictConfig, overrides: list[str]) -> None:
    raw: Any = OmegaConf.to_container(sweeper)
    if raw.get("search_space"):
        raise ConfigError("hydra.sweeper.search_space is not used here; use hydra.sweeper.params or overrides")
    for place, _, value in leaves({key: raw.get(key) for key in _TYPED}, "hydra.sweeper"):
        if value is not None:
            _require_typed(place, overrides)


def _require_typed(place: str, overrides: list[str]) -> None:
    """Raise ConfigError unless the command line sets this key, or the list that contains it."""
    key = place.partition("[")[0]
    if not any(override.lstrip("+").startswith(f"{key}=") for override in overrides):
        raise ConfigError(
            f"a recipe may not set {place}, which can run code or write anywhere; to set it, use its full name on the "
            f"command line: ++{key}=..."
        )


def end_of_multirun(error: Exception) -> str | None:
    """Why a launcher or sweeper of these packages failed; None for errors of other packages."""
    if isinstance(error, ValueError) and str(error) == "No trials are completed yet.":
        return "no job of the search succeeded"
    if not type(error).__module__.startswith(("submitit.", "ray.")):
        return None
    first, _, rest = str(error).strip().partition("\n")
    reason = last_error_line(rest)
    return ": ".join([first.rstrip(":"), *([reason] if reason else [])])
