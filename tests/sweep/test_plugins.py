"""Sweeps with a launcher or sweeper of another package; the real plugins if they are installed."""

import importlib.util
import shlex
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from omegaconf import OmegaConf

from imagenet_opt.errors import ConfigError
from imagenet_opt.run.numbers import IMAGES_PER_SECOND
from imagenet_opt.sweep.job import OBJECTIVE
from imagenet_opt.sweep.plugins import RAY, check_installed, end_of_multirun
from imagenet_opt.sweep.rows import collect_rows
from imagenet_opt.sweep.settings import measure_of
from tests.processes import path_with
from tests.sweep.test_job import APP, made_app, wait_for
from tests.sweep.test_job import start as started

installed = all(importlib.util.find_spec(name) for name in ("hydra_plugins", "submitit", "optuna"))
needs_plugins = pytest.mark.skipif(not installed, reason='needs pip install "imagenet-opt[sweep]"')


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app that ends in one line."""
    mistakes = "from imagenet_opt.cli.mistakes import report_mistakes\nreport_mistakes(main)\n"
    return made_app(tmp_path / "app", APP.removesuffix("main()\n") + mistakes)


def start(app: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return started(app, "-m", *arguments, HYDRA_FULL_ERROR="1", **variables)  # as train.py sets it


def finished(app: Path, *arguments: str, status: int = 0, **variables: str) -> tuple[str, str]:
    """stdout and stderr of a sweep that ends with this status."""
    process = start(app, *arguments, **variables)
    out, err = process.communicate(timeout=600)
    assert process.returncode == status, err
    return out, err


@pytest.mark.parametrize(("part", "extra"), [("launcher", "sweep"), ("sweeper", "sweep"), ("launcher", "ray")])
def test_a_missing_package_is_named(part: str, extra: str) -> None:
    target = RAY if extra == "ray" else "hydra_plugins.not_installed.Some"
    there = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}
    config = OmegaConf.create({"launcher": there, "sweeper": there} | {part: {"_target_": target}})
    if importlib.util.find_spec("ray") and extra == "ray":
        pytest.skip("Ray is installed")
    with pytest.raises(ConfigError, match=rf'hydra/{part}: .* pip install "imagenet-opt\[{extra}\]"'):
        check_installed(config)


def test_errors_of_the_plugins_are_recognised() -> None:
    lost = type("FailedJobError", (RuntimeError,), {"__module__": "submitit.core.utils"})
    text = "Job (task=0) failed during processing with trace:\n---\nTraceback\n  x\nimagenet.ConfigError: no key a\n---"
    assert end_of_multirun(lost(text)) == ("Job (task=0) failed during processing with trace: ConfigError: no key a")
    assert end_of_multirun(ValueError("No trials are completed yet.")) is not None
    assert end_of_multirun(ValueError("other")) is None and end_of_multirun(RuntimeError("a")) is None


SBATCH = """
for file; do :; done
cp "$file" {folder}/submitted.sh
export SLURM_JOB_ID=12 SLURM_ARRAY_JOB_ID=12 SLURM_JOB_NAME=imagenet-opt SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1
for i in 0 1; do SLURM_ARRAY_TASK_ID=$i sh {folder}/submitted.sh > /dev/null 2>&1 & done
echo Submitted batch job 12
"""
SRUN = """
while :; do case "$1" in --unbuffered) shift ;; --*=*) shift ;; --output | --error) shift 2 ;; *) break ;; esac; done
exec "$@"
"""
SACCT = "printf 'JobID|State|NodeList\\n12_0|RUNNING|here\\n12_1|RUNNING|here\\n'\n"


@needs_plugins
@pytest.mark.slow
def test_options_and_rows_of_slurm_jobs(app: Path) -> None:
    """The stand-ins of SLURM's commands run the batch script on this machine."""
    path = path_with(app, sbatch=SBATCH.format(folder=app), srun=SRUN, sacct=SACCT)
    launcher = ("hydra/launcher=slurm", "hydra.launcher.partition=gpu", "+hydra.launcher.setup=[touch was_set_up]")
    out, _ = finished(app, *launcher, "kind=ok,mistake", "size=3", "hydra.sweep.dir=runs/s", PATH=path)
    assert [row.status for row in collect_rows(app / "runs/s")] == ["ok", "failed"]
    assert str(app / "runs/s/sweep.html") in out and (app / "was_set_up").exists()
    script = (app / "submitted.sh").read_text().splitlines()
    for flag in ("signal=USR1@300", "partition=gpu", "gpus-per-node=1", "time=1440", "array=0-1%2"):
        assert f"#SBATCH --{flag}" in script
    assert any("srun" in line and " --cpus-per-task=8 " in line for line in script)


@needs_plugins
@pytest.mark.slow
def test_a_job_requeues_after_a_warning(app: Path) -> None:
    path, script = path_with(app, scontrol=f'echo "$@" > "{app}/asked"\n'), app / "app.py"
    hurry = "from submitit.core.core import Job\nJob._results_timeout_s = 0  # 15 s for a slow file system\n"
    script.write_text(hurry + script.read_text())
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "sweep", "PATH": path}
    process = start(app, "hydra/launcher=slurm_local", "kind=waits", "hydra.sweep.dir=runs/s", **job)
    wait_for(app / "runs/s/0/waiting", process)
    children = psutil.Process(process.pid).children(recursive=True)
    (task,) = (child for child in children if "submitit.core._submit" in child.cmdline())
    task.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=600)
    assert (app / "asked").read_text() == "requeue 7\n"
    assert [row.status for row in collect_rows(app / "runs/s")] == ["interrupted"]
    assert process.returncode == 2 and "TrainingError: Job" in err and "Traceback" not in err
    assert f"python {shlex.quote(str(app / 'app.py'))} -m hydra.sweep.dir=" in err
    assert "hydra/launcher=slurm_local kind=waits` resumes the sweep" in err


@needs_plugins
@pytest.mark.slow
def test_a_search_continues_after_failed_jobs_and_is_repeatable(app: Path) -> None:
    """A learning rate changes what is learned, so the search maximizes the accuracy; finished jobs serve another."""
    words = ("hydra/sweeper=search", "hydra.sweeper.n_trials=2", "+optimizer.lr=1,2", "kind=ok,mistake", "size=1,2,3")
    out, _ = finished(app, *words, "hydra.sweep.dir=runs/s")
    rows = collect_rows(app / "runs/s")
    assert {row.status for row in rows} == {"ok", "failed"} and len(rows) == 2
    (size,) = (int(row.parameters["size"]) for row in rows if row.status == "ok")
    found = OmegaConf.load(app / "runs/s/optimization_results.yaml")
    assert "the search maximizes val/acc1" in out and found.best_value == 0.1 / size
    assert str(app / "runs/s/sweep.html") in out

    again, _ = finished(app, *words, "hydra.sweep.dir=runs/s", f"{OBJECTIVE}=val/loss")
    assert again.count("succeeded before") == 1 and "the search minimizes val/loss" in again
    assert OmegaConf.load(app / "runs/s/optimization_results.yaml").best_value == size
    assert measure_of(["data.batch_size", "optimizer.fused"]).key == IMAGES_PER_SECOND
