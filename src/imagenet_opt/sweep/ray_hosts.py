"""Connects to a Ray cluster, each of whose hosts must have room for one job of a sweep, and no more."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imagenet_opt.errors import ConfigError, first_line

_KEY = "hydra.launcher.ray"


def connect(launcher: DictConfig) -> None:
    """Connect this process to the cluster; the launcher then uses this connection.

    Raises ConfigError if there is no cluster, or if its hosts do not fit the jobs.
    """
    import ray

    options: Any = OmegaConf.to_container(launcher.ray, resolve=True)
    try:
        ray.init(**(options["init"] or {}))
    except (ConnectionError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {_KEY}.init.address={(options['init'] or {}).get('address')}: "
            f"{first_line(error)}; start one with `ray start --head`, and on the other hosts `ray start --address=HEAD`"
        ) from error
    hosts = {node["NodeManagerHostname"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    check_hosts(hosts, num_gpus=options["remote"]["num_gpus"], num_cpus=options["remote"]["num_cpus"])


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
