"""Real runs of W&B, Trackio and MLflow, killed and started again, whose files are then read."""

import json
import os
import pty
from pathlib import Path

import pytest

from tests.processes import run_forked, run_script

LIFE = """
import json, logging, os, signal, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
import psutil
from hydra.utils import get_object
from imagenet_opt.run.loggers.csv_logger import MetricsCsv

def live(target, folder, first, last, end):
    loggers = [MetricsCsv(folder=folder), get_object(f"imagenet_opt.run.loggers.{target}")(folder=folder, project="p")]
    for logger in loggers:
        logger.truncate_after(first - 1)
    for step in range(first, last):
        for logger in loggers:
            logger.log_metrics({"train/loss": 1 / (step + 1), "epoch": step // 10}, step)
        if step % 10 == 9:
            for logger in loggers:
                logger.log_metrics({"val/acc1": step / 100, "epoch": step // 10}, step)
        if end == "killed" and step == last - 10:
            for child in psutil.Process().children(recursive=True):  # W&B's own process goes first
                child.kill()
                child.wait()
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    for logger in loggers:
        logger.finalize("success")
    loggers[1].finish(exit_code=0)
    if target == "wandb_logger.build_wandb":
        import wandb
        assert wandb.run is None

live(*sys.argv[1:3], *json.loads(sys.argv[3]))
"""
READ_TRACKIO = """
import json
from trackio import Api
from trackio.sqlite_storage import SQLiteStorage
run, = Api().runs("p")
print(json.dumps([[row["step"], row] for row in SQLiteStorage.get_logs("p", run.name)], default=str))
"""
READ_MLFLOW = """
import json
from mlflow import MlflowClient
client = MlflowClient("sqlite:///mlflow.db")
run, = client.search_runs([client.get_experiment_by_name("p").experiment_id])
assert run.info.status == "FINISHED"
history = [row for name in ("train/loss", "val/acc1") for row in client.get_metric_history(run.info.run_id, name)]
print(json.dumps([[row.step, {row.key: row.value}] for row in history]))
"""
Rows = list[tuple[int, dict[str, float]]]


def live_twice(target: str, folder: Path, *variables: dict[str, str]) -> list[str]:
    """A life that is killed before its checkpoint of step 29 has a successor, and one that resumes there; their output.

    Nobody sits at the terminal of the first: a question would never be answered.
    """
    outputs = []
    lives = ((0, 35, "killed"), -9), ((30, 60, "finished"), 0)
    for (life, code), given in zip(lives, variables, strict=True):
        keyboard, terminal = pty.openpty()
        with open(os.ttyname(terminal)) as named:
            place = {"terminal": named} if code else {}
            words = [target, str(folder), json.dumps(life)]
            done = run_script(LIFE, words, cwd=folder, environment=environment(folder) | given, **place)
        os.close(keyboard)
        os.close(terminal)
        assert done.returncode == code, done.stdout + done.stderr
        outputs.append(done.stdout)
    return outputs


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_"))}
    return kept | {"HOME": str(folder), "NETRC": str(folder / "no_netrc"), "TERM": "xterm", "TRACKIO_DIR": str(folder)}


def check(rows: Rows, kept_from: int) -> None:
    """Each step is there once, with its numbers; none is missing from step `kept_from` on."""
    losses = [(step, row["train/loss"]) for step, row in rows if "train/loss" in row]
    steps = [step for step, _ in losses]
    assert steps == sorted(set(steps)) and {*range(kept_from, 60)} <= set(steps)
    assert losses == [(step, 1 / (step + 1)) for step in steps]
    validations = [(step, row["val/acc1"]) for step, row in rows if "val/acc1" in row]
    assert validations == [(step, step / 100) for step in range(9, 60, 10) if step in steps]


@pytest.mark.slow
def test_wandb_without_a_key_or_a_question_has_each_step_of_a_killed_run_once(tmp_path: Path) -> None:
    without_key = {"WANDB_MODE": "online", "SLURM_PASSWORD": "hunter2"}
    first, second = live_twice("wandb_logger.build_wandb", tmp_path, without_key, {"WANDB_API_KEY": "short"})
    assert "no W&B key for mode online" in first and first.count("W&B failed at step") == 1
    assert "cannot use its key" in second
    run_id = (tmp_path / "wandb_id.txt").read_text().strip()
    files = sorted(tmp_path.glob(f"wandb/offline-run-*-{run_id}*/run-{run_id}.wandb"))
    assert len(files) == 2
    inspect = ["-m", "wandb", "leet", "inspect", "--json"]
    shown = [run_forked([*inspect, str(file)], cwd=tmp_path, environment=environment(tmp_path)) for file in files]
    records = [json.loads(line) for one in shown for line in one.stdout.splitlines()]
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert all(row["_step"] == row["trainer/global_step"] for row in rows)
    check([(row["_step"], row) for row in rows], 25)  # W&B's process was killed before it wrote those between
    assert not [record for record in records if record["type"] == "environment"]
    everything = [path.read_bytes() for path in (tmp_path / "wandb").rglob("*") if path.is_file()]
    assert not any(b"hunter2" in content for content in everything)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("service", "target", "read", "kept_from"),
    [
        ("trackio", "trackio_logger.TrackioRunLogger", READ_TRACKIO, 34),  # its thread had the rows before in memory
        ("mlflow", "mlflow_logger.MlflowRunLogger", READ_MLFLOW, 0),
    ],
)
def test_a_service_has_each_step_of_a_killed_run_once(
    service: str, target: str, read: str, kept_from: int, tmp_path: Path
) -> None:
    pytest.importorskip(service, reason=f'needs pip install "imagenet-opt[{service}]"')
    live_twice(target, tmp_path, {}, {})
    shown = run_script(read, [], cwd=tmp_path, environment=environment(tmp_path))
    assert shown.returncode == 0, shown.stderr
    check(json.loads(shown.stdout), kept_from)
