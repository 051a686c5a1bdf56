"""Sweeps on a Ray cluster: one job on each host. With the real Ray, if it is installed."""

import importlib.util
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from imagenet_opt.errors import ConfigError
from imagenet_opt.sweep.plugins import check_hosts, connect
from imagenet_opt.sweep.rows import collect_rows
from tests.sweep.test_plugins import app, finished  # noqa: F401

LARGE, SMALL, HEAD = {"GPU": 4.0, "CPU": 48.0}, {"GPU": 1.0, "CPU": 4.0}, {"CPU": 8.0}
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs pip install "imagenet-opt[ray]"')
RAY = ("hydra/launcher=ray", "hydra.launcher.ray.remote.num_gpus=0")
OF_TWO_CPUS = (
    "hydra.launcher.ray.init.address=local",
    "+hydra.launcher.ray.init.num_cpus=2",
    "+hydra.launcher.ray.init.include_dashboard=false",
)
VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


def test_each_host_must_have_room_for_one_job() -> None:
    check_hosts({"head": HEAD, "a": SMALL, "b": SMALL}, num_gpus=1, num_cpus=4)
    check_hosts({"a": LARGE, "b": SMALL}, num_gpus=4, num_cpus=4)
    check_hosts({"head": HEAD}, num_gpus=0, num_cpus=8)
    wrong = [({"a": SMALL, "b": LARGE}, 1, 4, 4), ({"a": SMALL}, 0.5, 1, 2), ({"head": HEAD}, 1, 4, 0)]
    for hosts, num_gpus, num_cpus, rooms in (*wrong, ({"a": SMALL}, 0, 0, "inf")):
        with pytest.raises(ConfigError, match=rf"room for {rooms} jobs .*remote\.num_gpus"):
            check_hosts(hosts, num_gpus=num_gpus, num_cpus=num_cpus)


def test_a_folder_that_other_hosts_do_not_find_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hydra\.sweep\.dir=runs/sweep"):
        connect(OmegaConf.create(), "runs/sweep")


@needs_ray
@pytest.mark.slow
def test_rows_of_jobs_on_a_cluster(app: Path) -> None:  # noqa: F811
    """The preempted job is tried again by Ray, and then ends the sweep with the command that resumes it."""
    sweep = app / "runs/s"
    cpus = ("hydra.launcher.ray.remote.num_cpus=2", "hydra.launcher.ray.remote.max_retries=1")
    _, err = finished(
        app, *RAY, *OF_TWO_CPUS, *cpus, "kind=ok,mistake,preempted", "size=2", f"hydra.sweep.dir={sweep}", status=2,
        **VARIABLES,
    )  # fmt: skip
    statuses = [(row.status, row.error) for row in collect_rows(sweep)]
    mistake = "DatasetNotFound: no <train>/ under /d (data.root)"
    assert statuses == [("ok", None), ("failed", mistake), ("interrupted", None)]
    assert err.count("Preempted: SIGTERM: step 7") == 2
    assert "TrainingError: " in err and "hydra.sweep.dir=" in err and "resumes the sweep" in err
    _, err = finished(app, *RAY, f"hydra.sweep.dir={app}/s", status=2, **VARIABLES)
    assert "ConfigError: no Ray cluster answers at hydra.launcher.ray.init.address=auto" in err
