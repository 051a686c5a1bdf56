"""The launchers and sweepers of other packages: of the extras `sweep` and `ray`.

Each host of a Ray cluster must have room for one job of a sweep, and no more.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imagenet_opt.errors import ConfigError, first_line, last_error_line

RAY = "hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher"
_KEY = "hydra.launcher.ray"
_LEAST = {"num_gpus": 0, "num_cpus": 1}
"""Keys of hydra.launcher.ray.remote -> least values."""


def check_installed(hydra: DictConfig) -> None:
    """Raise ConfigError, with the extra to install, if the package of the launcher or the sweeper is missing."""
    for part in ("launcher", "sweeper"):
        package, _, _ = hydra[part]._target_.rpartition(".")
        try:
            found = importlib.util.find_spec(package) is not None
        except ModuleNotFoundError:  # find_spec imports the packages above the module
            found = False
        if not found:
            extra = "ray" if hydra[part]._target_ == RAY else "sweep"
            install = f'pip install "imagenet-opt[{extra}]"'
            raise ConfigError(f"hydra/{part}: {package} needs a package that is not installed: {install}")


def end_of_multirun(error: Exception) -> str | None:
    """Why a launcher or sweeper of these packages failed; None for errors of other packages."""
    if isinstance(error, ValueError) and str(error) == "No trials are completed yet.":
        return "no job of the search succeeded"
    if not type(error).__module__.startswith(("submitit.", "ray.")):
        return None
    first, _, rest = str(error).strip().partition("\n")
    reason = last_error_line(rest)
    return ": ".join([first.rstrip(":"), *([reason] if reason else [])])


def connect(launcher: DictConfig, sweep_dir: str) -> None:
    """Connect this process to the cluster; the launcher then uses this connection.

    Raises ConfigError if there is no cluster, if its hosts do not fit the jobs, or if `sweep_dir` is no full path.
    """
    options: Any = OmegaConf.to_container(launcher.ray, resolve=True)
    check_job(options["remote"], sweep_dir)
    import ray

    try:
        ray.init(**(options["init"] or {}))
    except (ConnectionError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {_KEY}.init.address={(options['init'] or {}).get('address')}: "
            f"{first_line(error)}; start one with `ray start --head`, and on the other hosts `ray start --address=HEAD`"
        ) from error
    hosts = {node["NodeManagerHostname"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    check_hosts(hosts, num_gpus=options["remote"]["num_gpus"], num_cpus=options["remote"]["num_cpus"])


def check_job(remote: Mapping[str, Any], sweep_dir: str) -> None:
    """Raise ConfigError unless a job asks for whole GPUs and CPUs, and all hosts find its folder."""
    for key, least in _LEAST.items():
        value = remote.get(key)
        if type(value) is not int or value < least:
            raise ConfigError(
                f"{_KEY}.remote.{key}={value} must be a whole number, at least {least}: jobs that share a host or a "
                "GPU slow each other down, so their images per second would be wrong"
            )
    if not Path(sweep_dir).is_absolute():
        raise ConfigError(
            f"hydra.sweep.dir={sweep_dir} must be the full path of a folder that all hosts of Ray share, since Ray "
            "starts jobs in another working folder; such as hydra.sweep.dir=/fsx/runs/sweep"
        )


def check_hosts(hosts: Mapping[str, Mapping[str, float]], *, num_gpus: int, num_cpus: int) -> None:
    """Raise ConfigError if no host has room for a job, or a host has room for two. hosts: name -> Ray's resources."""
    rooms = {name: _room(resources, num_gpus, num_cpus) for name, resources in hosts.items()}
    if not any(rooms.values()):
        found = "; ".join(f"{name}: {_size(resources)}" for name, resources in hosts.items())
        raise ConfigError(
            f"no host of the Ray cluster has {num_gpus} GPUs and {num_cpus} CPUs for a job ({_KEY}.remote.num_gpus, "
            f"{_KEY}.remote.num_cpus); it has {found}"
        )
    name = max(rooms, key=lambda name: rooms[name])
    if rooms[name] > 1:
        key, resource = ("num_gpus", "GPU") if num_gpus else ("num_cpus", "CPU")
        raise ConfigError(
            f"{name} has {_size(hosts[name])}, room for {rooms[name]} jobs at once, which would slow each other down, "
            f"so their images per second would be wrong; set {_KEY}.remote.{key}={hosts[name][resource]:.0f}"
        )


def _room(resources: Mapping[str, float], num_gpus: int, num_cpus: int) -> int:
    """Number of jobs that Ray would run on a host at once."""
    by_cpus = int(resources.get("CPU", 0) // num_cpus)
    return min(by_cpus, int(resources.get("GPU", 0) // num_gpus)) if num_gpus else by_cpus


def _size(resources: Mapping[str, float]) -> str:
    return f"{resources.get('GPU', 0):.0f} GPUs and {resources.get('CPU', 0):.0f} CPUs"
