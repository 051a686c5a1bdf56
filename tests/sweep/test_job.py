"""Multiruns of a small app: rows, files and table, also of jobs that fail, die or are interrupted."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from imagenet_opt.config.overrides import config_folder
from imagenet_opt.sweep.rows import collect_rows, varying
from tests.processes import path_with

APP = """
import json, os, signal, sys
from pathlib import Path
import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from imagenet_opt.sweep.job import run_job

def job(config, folder):
    print("message for the terminal")
    seen = {"text": config.text, "sweep": os.environ["IMAGENET_OPT_SWEEP"], "more": config.get("more")}
    (folder / "seen.json").write_text(json.dumps(seen))
    if config.kind == "mistake":
        print("wandb: warming up", file=sys.stderr)
        print("DatasetNotFound: no <train>/ under /d (data.root)", file=sys.stderr)
        print("wandb: goodbye", file=sys.stderr)
        print("/lib/resource_tracker.py:9: UserWarning: leaked\\n  warnings.warn(", file=sys.stderr)
        sys.exit(2)
    if config.kind == "preempted":
        print("Preempted: SIGTERM: step 7", file=sys.stderr)
        sys.exit(75)
    if config.kind == "crash":
        raise MemoryError
    if config.kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if config.kind == "stubborn":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if config.kind in ("stubborn", "waits"):
        (folder / "waiting").touch()
        while True:
            signal.pause()
    numbers = {"val/acc1": 0.1 / config.size, "val/loss": config.size}
    numbers |= {"throughput/images_per_second": 10.0 * config.size}
    (folder / "record.json").write_text(json.dumps({"numbers": numbers}))

@hydra.main(config_path="conf", config_name="app", version_base="1.3")
def main(config):
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        speed = run_job(Path(__file__))
        with open(Path(__file__).absolute().with_name("returned.txt"), "a") as file:
            file.write(f"{speed}\\n")
        if config.kind == "asks":
            os.kill(os.getpid(), signal.SIGUSR1)
        return speed
    job(config, Path(HydraConfig.get().runtime.output_dir))

main()
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app in a folder whose name needs quoting."""
    return made_app(tmp_path / "it's, an=app", APP)


def made_app(folder: Path, text: str) -> Path:
    """A Hydra app with the project's conf/hydra, and keys that the check of a run's configuration does not know."""
    shutil.copytree(config_folder() / "hydra", folder / "conf/hydra")
    default = folder / "conf/hydra/default.yaml"
    default.write_text(re.sub(r"  check_config:\n.*\n", "", default.read_text()))
    (folder / "conf" / "app.yaml").write_text("defaults: [_self_, {hydra: default}]\nkind: ok\nsize: 1\ntext: a\n")
    (folder / "app.py").write_text(text)
    return folder


def start(app: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen([sys.executable, "app.py", *arguments], cwd=app, env=os.environ | variables, **options)


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not file.exists():
        assert process.poll() is None and time.monotonic() < deadline, f"{file} never came"
        time.sleep(0.02)


@pytest.mark.slow
def test_every_job_becomes_a_row(app: Path) -> None:
    kinds = "kind=ok,mistake,crash,killed"
    (app / "more/other").mkdir(parents=True)
    (app / "more/other/long.yaml").write_text("# @package _global_\nmore: of the other folder\n")
    more = ("--config-dir", "more", "+other@_global_=long", "hydra.job.chdir=true")
    process = start(app, "-m", *more, kinds, "size=2", "text='<i>a=b</i>, c'", "hydra.sweep.dir=runs/s")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    sweep = app / "runs" / "s"
    rows = collect_rows(sweep)

    mistake = "DatasetNotFound: no <train>/ under /d (data.root)"
    assert [(row.job, row.status, row.exit_code, row.error) for row in rows] == [
        (0, "ok", 0, None),
        (1, "failed", 2, mistake),
        (2, "failed", 1, "MemoryError"),
        (3, "failed", -9, "killed by signal 9 (out of memory?)"),
    ]
    assert varying(rows) == ["kind"]
    assert (app / "returned.txt").read_text().split() == ["20.0", "None", "None", "None"]

    seen = {"text": "<i>a=b</i>, c", "sweep": "s", "more": "of the other folder"}
    assert json.loads((sweep / "0" / "seen.json").read_text()) == seen
    assert "message for the terminal" in out and "message for the terminal" in (sweep / "0" / "job.log").read_text()
    assert "DatasetNotFound" in out and "DatasetNotFound" in (sweep / "1" / "job.log").read_text()
    assert str(sweep / "sweep.csv") in out and str(sweep / "sweep.html") in out

    with (sweep / "sweep.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [line["throughput/images_per_second"] for line in table] == ["20.0", "", "", ""]
    assert [(line["kind"], line["size"]) for line in table[:2]] == [("ok", "2"), ("mistake", "2")]
    assert table[1]["error"] == mistake

    page = (sweep / "sweep.html").read_text()
    assert "no &lt;train&gt;/ under /d" in page and "no <train>/" not in page
    assert f"kind={kinds.partition('=')[2]}" in page, "the command that resumes the sweep"


@pytest.mark.slow
def test_ctrl_c_keeps_the_rows_so_far_and_a_second_one_kills_the_job(app: Path) -> None:
    process = start(app, "-m", "kind=ok,stubborn,killed", "hydra.sweep.dir=runs/s")
    sweep = app / "runs" / "s"
    wait_for(sweep / "1" / "waiting", process)
    assert "ok" in (sweep / "sweep.csv").read_text() and (sweep / "sweep.html").exists()
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout is not None
    while "Ctrl-C again kills it" not in process.stdout.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode != 0 and "KeyboardInterrupt" in err
    rows = [(row.status, row.exit_code) for row in collect_rows(sweep)]
    assert rows == [("ok", 0), ("interrupted", -signal.SIGKILL)]
    assert "interrupted" in out and "interrupted" in (sweep / "sweep.csv").read_text()


@pytest.mark.slow
def test_a_preempted_sweep_resumes_after_the_finished_jobs(app: Path) -> None:
    _, err = start(app, "-m", "kind=ok,preempted,waits", "size=2", "hydra.sweep.dir=runs/s").communicate(timeout=600)
    assert "Preempted: the sweep stopped in job #1; `python " in err
    assert err.endswith("kind=ok,preempted,waits size=2` resumes the sweep\n")
    rows = collect_rows(app / "runs" / "s")
    assert [(row.status, row.exit_code) for row in rows] == [("ok", 0), ("interrupted", 75)]

    (app / "runs/s/0/seen.json").unlink()
    process = start(app, "-m", "kind=ok,waits", "size=2", "hydra.sweep.dir=runs/s")
    wait_for(app / "runs/s/1/waiting", process)
    assert not (app / "runs/s/0/seen.json").exists()
    process.terminate()  # the sweep, which forwards the signal to its job
    _, err = process.communicate(timeout=600)
    assert process.returncode == 75, err
    row = collect_rows(app / "runs" / "s")[1]
    assert (row.status, row.exit_code) == ("interrupted", -signal.SIGTERM)


@pytest.mark.slow
def test_a_signal_between_two_jobs_records_the_jobs_and_requeues_the_sweep(app: Path) -> None:
    path = path_with(app, scontrol='echo "$@" > asked; cp runs/s/sweep.csv as_asked.csv\n')
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "sweep", "PATH": path}
    process = start(app, "-m", "kind=asks,waits", "hydra.sweep.dir=runs/s", **job)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 75, err
    assert "Preempted: the sweep ends before job #1; `python " in err
    assert [row.status for row in collect_rows(app / "runs" / "s")] == ["ok"]
    assert (app / "asked").read_text() == "requeue 7\n" and "asks" in (app / "as_asked.csv").read_text()
