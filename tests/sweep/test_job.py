"""Multiruns of a small app: rows, files and table, also of jobs that fail, die or are interrupted."""

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from imagenet_opt.run.numbers import IMAGES_PER_SECOND
from imagenet_opt.sweep.page import write_page
from imagenet_opt.sweep.rows import Row, best, collect_rows, outcome, speed, varying
from imagenet_opt.sweep.table import METRICS, print_table, write_csv

APP = """
import json, os, signal, sys
from pathlib import Path
import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from imagenet_opt.sweep.job import run_job

def job(config, folder):
    print("message for the terminal")
    (folder / "seen.json").write_text(json.dumps({"text": config.text, "sweep": os.environ["IMAGENET_OPT_SWEEP"]}))
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
    speed = {"throughput/images_per_second": 10.0 * config.size, "throughput/data_wait_fraction": 0.25}
    (folder / "summary.json").write_text(json.dumps(speed))

@hydra.main(config_path="conf", config_name="app", version_base="1.3")
def main(config):
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        speed = run_job(Path(__file__))
        with open("returned.txt", "a") as file:
            file.write(f"{speed}\\n")
        if config.kind == "asks":
            os.kill(os.getpid(), signal.SIGUSR1)
        return speed
    job(config, Path(HydraConfig.get().runtime.output_dir))

main()
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A Hydra app in a folder whose name needs quoting, with the project's conf/hydra/default.yaml."""
    folder = tmp_path / "it's, an=app"
    (folder / "conf" / "hydra").mkdir(parents=True)
    shutil.copy(Path(__file__).parents[2] / "conf/hydra/default.yaml", folder / "conf" / "hydra")
    (folder / "conf" / "app.yaml").write_text("defaults: [_self_, {hydra: default}]\nkind: ok\nsize: 1\ntext: a\n")
    (folder / "app.py").write_text(APP)
    return folder


def start(app: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen([sys.executable, "app.py", *arguments], cwd=app, env=os.environ | variables, **options)


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert process.poll() is None and time.monotonic() < deadline, f"{file} never came"
        time.sleep(0.02)


class Resources(HTMLParser):
    """The addresses of a page's resources and links."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]


@pytest.mark.slow
def test_every_job_becomes_a_row(app: Path) -> None:
    kinds = "kind=ok,mistake,crash,killed"
    process = start(app, "-m", kinds, "size=2", "text='<i>a=b</i>, c'", "hydra.sweep.dir=runs/s")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    sweep = app / "runs" / "s"
    rows = collect_rows(sweep)

    mistake = "DatasetNotFound: no <train>/ under /d (data.root)"
    assert [(row["job"], row["status"], row["exit_code"], row["error"]) for row in rows] == [
        (0, "ok", 0, None),
        (1, "failed", 2, mistake),
        (2, "failed", 1, "MemoryError"),
        (3, "failed", -9, "killed by signal 9 (out of memory?)"),
    ]
    assert varying(rows) == ["kind"]
    assert (app / "returned.txt").read_text().split() == ["20.0", "None", "None", "None"]

    assert json.loads((sweep / "0" / "seen.json").read_text()) == {"text": "<i>a=b</i>, c", "sweep": "s"}
    assert "message for the terminal" in out and "message for the terminal" in (sweep / "0" / "job.log").read_text()
    assert "DatasetNotFound" in err and "DatasetNotFound" in (sweep / "1" / "job.log").read_text()
    assert str(sweep / "sweep.csv") in out and str(sweep / "sweep.html") in out

    with (sweep / "sweep.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [line["throughput/images_per_second"] for line in table] == ["20.0", "", "", ""]
    assert [(line["kind"], line["size"]) for line in table[:2]] == [("ok", "2"), ("mistake", "2")]
    assert table[1]["error"] == mistake

    page = (sweep / "sweep.html").read_text()
    assert "no &lt;train&gt;/ under /d" in page and "no <train>/" not in page
    assert "&lt;i&gt;a=b&lt;/i&gt;" in page and "<i>a=b" not in page
    assert Resources(page).addresses == ["data:,"]


def test_a_job_reads_the_same_configuration_as_the_sweep(app: Path) -> None:
    other = app / "more" / "text"
    other.mkdir(parents=True)
    (other / "long.yaml").write_text("# @package _global_\ntext: from the other folder\n")
    process = start(app, "-m", "--config-dir", "more", "+text@_global_=long", "size=3", "hydra.job.chdir=true")
    _, err = process.communicate(timeout=60)
    (sweep,) = (app / "runs").glob("sweep_*")
    assert collect_rows(sweep)[0]["status"] == "ok", err
    assert json.loads((sweep / "0" / "seen.json").read_text())["text"] == "from the other folder"


def test_ctrl_c_keeps_the_rows_so_far(app: Path) -> None:
    process = start(app, "-m", "kind=ok,waits,killed", "hydra.sweep.dir=runs/s")
    wait_for(app / "runs" / "s" / "1" / "waiting", process)
    sweep = app / "runs" / "s"
    assert "ok" in (sweep / "sweep.csv").read_text() and '<tr class="best">' in (sweep / "sweep.html").read_text()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert process.returncode != 0 and "KeyboardInterrupt" in err
    assert [row["status"] for row in collect_rows(sweep)] == ["ok", "interrupted"]
    assert "interrupted" in out and "interrupted" in (sweep / "sweep.csv").read_text()
    assert '<tr class="interrupted">' in (sweep / "sweep.html").read_text()


@pytest.mark.slow
def test_a_preempted_sweep_resumes_after_the_finished_jobs(app: Path) -> None:
    _, err = start(app, "-m", "kind=ok,preempted,waits", "size=2", "hydra.sweep.dir=runs/s").communicate(timeout=120)
    assert "Preempted: the sweep stopped in job #1; not run: #2 kind=waits size=2; `python " in err
    assert err.endswith("kind=ok,preempted,waits size=2` resumes the sweep\n")
    rows = collect_rows(app / "runs" / "s")
    assert [(row["status"], row["exit_code"]) for row in rows] == [("ok", 0), ("interrupted", 75)]

    (app / "runs/s/0/seen.json").unlink()
    process = start(app, "-m", "kind=ok,waits", "size=2", "hydra.sweep.dir=runs/s")
    wait_for(app / "runs/s/1/waiting", process)
    assert not (app / "runs/s/0/seen.json").exists()
    process.terminate()  # the sweep, which forwards the signal to its job
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    row = collect_rows(app / "runs" / "s")[1]
    assert (row["status"], row["exit_code"]) == ("interrupted", -signal.SIGTERM)


def test_a_signal_between_two_jobs_records_the_jobs_and_requeues_the_sweep(app: Path) -> None:
    scontrol = app / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "$@" > asked; cp runs/s/sweep.csv as_asked.csv\n')
    scontrol.chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "sweep", "PATH": f"{app}{os.pathsep}{os.environ['PATH']}"}
    process = start(app, "-m", "kind=asks,waits", "hydra.sweep.dir=runs/s", **job)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert "Preempted: the sweep ends before job #1; not run: #1 kind=waits; `python " in err
    assert [row["status"] for row in collect_rows(app / "runs" / "s")] == ["ok"]
    assert (app / "asked").read_text() == "requeue 7\n" and "asks" in (app / "as_asked.csv").read_text()


def test_a_second_ctrl_c_kills_a_job_that_does_not_stop(app: Path) -> None:
    process = start(app, "-m", "kind=stubborn", "hydra.sweep.dir=runs/s")
    wait_for(app / "runs" / "s" / "0" / "waiting", process)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout is not None
    while "Ctrl-C again kills it" not in process.stdout.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    (row,) = collect_rows(app / "runs" / "s")
    assert (row["status"], row["exit_code"]) == ("interrupted", -signal.SIGKILL)


def test_help_shows_commands_and_groups(app: Path) -> None:
    out, err = start(app, "--help").communicate(timeout=60)
    assert err == ""
    for text in ("experiment=aggressive", "data.num_workers", "python train.py -m data.root=", "resume_from", "GROUPS"):
        assert text in out
    assert "$" not in out and "Powered by Hydra" not in out


def record(
    sweep: Path, job: int, overrides: list[str], images_per_second: float | None, status: str = "ok", **metrics: float
) -> None:
    folder = sweep / str(job)
    folder.mkdir(parents=True)
    outcome = {"status": status, "error": None, "seconds": 1.0, "exit_code": 0}
    (folder / "job.json").write_text(json.dumps({"job": job, "overrides": ["seed=1", *overrides], **outcome}))
    summary = {"throughput/images_per_second": images_per_second} | metrics
    (folder / "summary.json").write_text(json.dumps(summary))


def best_job(rows: list[Row]) -> int | None:
    row = best(rows)
    return row and row["job"]


def test_the_best_job_is_the_fastest_successful_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, 10, ["+model=small"], 5.0)
    record(tmp_path, 2, ["+model=large"], None)
    record(tmp_path, 3, ["~model"], 900.0, status="failed")
    (tmp_path / "3" / "summary.json").write_text('{"throughput/images_per')  # died while writing
    record(tmp_path, 11, ["+model=tiny"], 1234.0)
    record(tmp_path, 12, ["+model=fast"], 9999.0, status="interrupted")
    rows = collect_rows(tmp_path)
    assert [row["job"] for row in rows] == [2, 3, 10, 11, 12]
    assert [speed(row) for row in rows if not math.isnan(speed(row))] == [5.0, 1234.0]
    assert best_job(rows) == 11
    print_table(rows, tmp_path)
    shown = capsys.readouterr().out
    assert "1,234" in shown and "tiny" in shown and "seed" not in shown.partition("\u2500")[0]
    assert "job 11 was the fastest. Each job ran once" in shown


def test_jobs_with_too_few_steps_are_not_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = {"loader/num_workers": 2, "loader/prefetch_factor": 4}
    for job, (steps, images_per_second) in enumerate([(200, 100.0), (3, 900.0), (35, 300.0)]):
        record(tmp_path, job, ["data.num_workers=16"], images_per_second, steps=steps, **loader)
    record(tmp_path, 3, ["data.num_workers=1"], None, status="failed")
    rows = collect_rows(tmp_path)
    assert [outcome(row) for row in rows] == ["ok", *["ok, too few steps to trust"] * 2, "failed"]
    assert (best_job(rows), best_job(rows[1:])) == (0, 1)

    print_table(rows, tmp_path)
    shown = capsys.readouterr().out
    assert "too few steps to trust: raise trainer.max_steps to at least 36" in shown
    (line,) = [line.split() for line in shown.splitlines() if line.split()[:1] == ["0"]]
    assert line[:2] == ["0", "16"] and line[-3:] == ["2", "4", "ok"]
    write_csv(rows, tmp_path)
    with (tmp_path / "sweep.csv").open(newline="") as file:
        assert [line["loader/num_workers"] for line in csv.DictReader(file)] == ["2", "2", "2", ""]
    write_page(rows, tmp_path)
    assert "ok, too few steps to trust" in (tmp_path / "sweep.html").read_text()


def test_a_table_that_is_too_wide_has_fewer_metrics_and_no_broken_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"data.parameter_number_{number}" for number in range(4)]
    for job in range(2):
        values = {key: float(job) for key in METRICS if key != IMAGES_PER_SECOND}
        record(tmp_path, job, [f"{name}={job}" for name in names], 100.0, **values)
    print_table(collect_rows(tmp_path), tmp_path)
    titles = [name.partition(".")[2] for name in names] + [title for title, _ in METRICS.values()]
    words = {word for title in (*titles, "sweep", "job", "status", tmp_path.name) for word in title.split()}
    heading = {*capsys.readouterr().out.partition("\u2500")[0].split()}
    assert {"parameter_number_3", "images/s"} <= heading <= words


def test_the_plot_is_over_the_parameter_with_most_values(tmp_path: Path) -> None:
    for job, (batch_size, workers) in enumerate((b, w) for b in (64, 128) for w in (16, 2, "<b>")):
        words = [f"data.batch_size={batch_size}", f"data.num_workers={workers}"]
        record(tmp_path, job, words, 100.0 + job, **{"val/acc1": 0.7})
    (folder := tmp_path / "sweep_of_workers").mkdir()
    write_page(collect_rows(tmp_path), folder)
    page = (folder / "sweep.html").read_text()
    assert "<title>sweep_of_workers</title>" in page and "acc1" in page and "70.0%" in page, page[:500]
    assert "`" not in page[page.index("<body") :].partition("<script")[0], "backticks are for terminals"
    assert r'"categoryarray":["2","16","&lt;b&gt;"]' in page
    for line, speeds in (("64", "[101.0,100.0,102.0]"), ("128", "[104.0,103.0,105.0]")):
        assert f'"name":"{line}"' in page and f'"y":{speeds}' in page
