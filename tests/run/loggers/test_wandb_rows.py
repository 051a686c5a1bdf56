"""Real offline W&B runs, killed and started again, whose files are then read."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.processes import run_forked, run_script

LIFE = """
import json, logging, os, signal, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
import psutil
from imagenet_opt.run.checkpoint.names import step_file
from imagenet_opt.run.loggers.metrics_csv import MetricsCsv
from imagenet_opt.run.loggers.wandb_logger import build_wandb

def live(folder, first, last, end):
    loggers = [MetricsCsv(folder=folder), build_wandb(folder=folder, project="p")]
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

live(sys.argv[1], *json.loads(sys.argv[2]))
"""


def live(folder: Path, *life: int | str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """One process that resumes a run at a step, logs up to a later step, and ends."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment |= {"HOME": str(folder), "WANDB_MODE": "offline"} | variables
    return run_script(LIFE, [str(folder), json.dumps(life)], cwd=folder, environment=environment)


def records(folder: Path) -> list[list[dict]]:
    """Those of each file, in the order in which they were written."""
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    return [[json.loads(line) for line in inspected(file).splitlines()] for file in files]


def inspected(file: Path) -> str:
    """What `wandb leet inspect` says of it, a line of JSON for each record."""
    arguments = ["-m", "wandb", "leet", "inspect", "--json", str(file)]
    return run_forked(arguments, cwd=file.parent, environment=os.environ).stdout


@pytest.mark.slow
def test_a_killed_run_has_each_step_once_and_complete(tmp_path: Path) -> None:
    first = live(tmp_path, 0, 35, "killed", SLURM_PASSWORD="hunter2")
    assert first.returncode == -9
    assert first.stdout.count("W&B failed at step") == 1
    second = live(tmp_path, 30, 60, "finished")
    assert second.returncode == 0, second.stderr
    found = records(tmp_path)
    assert len(found) == 2
    rows = [record["history"]["item"] for file in found for record in file if record["type"] == "history"]
    steps = [row["_step"] for row in rows]
    assert steps == [row["trainer/global_step"] for row in rows] == sorted(set(steps))
    assert {*range(25, 60)} <= set(steps)  # W&B's process was killed before it wrote those between
    assert [row["train/loss"] for row in rows] == [1 / (step + 1) for step in steps]
    assert {row["_step"]: row["val/acc1"] for row in rows if "val/acc1" in row} == {
        step: step / 100 for step in (9, 19, 29, 39, 49, 59) if step in steps
    }
    ids = {path.name.split("-")[3] for path in tmp_path.glob("wandb/offline-run-*")}  # -TIME-ID, -1 in the same second
    assert len(ids) == 1
    assert not [record for file in found for record in file if record["type"] == "environment"]
    everything = [path.read_bytes() for path in (tmp_path / "wandb").rglob("*") if path.is_file()]
    assert not any(b"hunter2" in content for content in everything)
