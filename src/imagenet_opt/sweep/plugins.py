"""The launchers and sweepers of other packages: of the extras `sweep` and `ray`."""

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imagenet_opt.errors import ConfigError, first_line, last_error_line

RAY = "hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher"
_KEY = "hydra.launcher.ray"


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
    if not Path(sweep_dir).is_absolute():
        raise ConfigError(
            f"hydra.sweep.dir={sweep_dir} must be the full path of a folder that all hosts of Ray share, since Ray "
            "starts jobs in another working folder; such as hydra.sweep.dir=/fsx/runs/sweep"
        )
    options: Any = OmegaConf.to_container(launcher.ray, resolve=True)
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


def check_hosts(hosts: Mapping[str, Mapping[str, float]], *, num_gpus: float, num_cpus: float) -> None:
    """Raise ConfigError if no host has room for a job, or a host has room for two, which would slow each other down.
    hosts: name -> Ray's resources."""
    needs = {kind: num for kind, num in (("GPU", num_gpus), ("CPU", num_cpus)) if num}

    def room(resources: Mapping[str, float]) -> float:
        return min((resources.get(kind, 0) // num for kind, num in needs.items()), default=math.inf)

    most = max(map(room, hosts.values()), default=0)
    if most != 1:
        found = "; ".join(
            f"{name}: {resources.get('GPU', 0):g} GPUs and {resources.get('CPU', 0):g} CPUs"
            for name, resources in hosts.items()
        )
        raise ConfigError(
            f"a host of the Ray cluster has room for {most:g} jobs of {num_gpus:g} GPUs and {num_cpus:g} CPUs, and "
            f"must have room for one, since jobs that share a host slow each other down ({found}); set "
            f"{_KEY}.remote.num_gpus to the GPUs of a host, or to 0, and {_KEY}.remote.num_cpus to its CPUs"
        )
