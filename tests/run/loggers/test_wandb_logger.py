"""W&B without a key, a terminal or a network: offline, one id, no question."""

import os
import pty
from pathlib import Path
from typing import IO

import pytest

from tests.processes import run_script

LOG_A_RUN = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from imagenet_opt.run.loggers.wandb_logger import build_wandb
logger = build_wandb(folder=sys.argv[1], project="p", group="g")
logger.log_metrics({"train/loss": 1.0, "epoch": 0}, step=0)
logger.log_metrics({"val/acc1": 0.5, "epoch": 0}, step=7)
logger.finalize("success")
print("ID", logger.experiment.id, logger.experiment.offline)
logger.finish(exit_code=0)
import wandb
print("OPEN", wandb.run)
"""


def log_a_run(folder: Path, script: str = LOG_A_RUN, *, terminal: IO[str] | None = None, **variables: str) -> list[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    environment |= {"HOME": str(folder), "NETRC": str(folder / "no_netrc"), "TERM": "xterm"} | variables
    done = run_script(script, [str(folder)], cwd=folder, environment=environment, terminal=terminal)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_without_a_key_a_terminal_gets_no_question_but_the_reason_for_offline_mode_and_a_restart_keeps_the_id(
    tmp_path: Path,
) -> None:
    keyboard, terminal = pty.openpty()  # nobody sits there: a question would never be answered
    with open(os.ttyname(terminal)) as named:
        warning, *first = log_a_run(tmp_path, terminal=named, WANDB_MODE="online")
    os.close(keyboard)
    os.close(terminal)
    assert "no W&B key for mode online" in warning
    warning, *second = log_a_run(tmp_path, WANDB_API_KEY="short")
    assert "cannot use its key" in warning
    run_id = (tmp_path / "wandb_id.txt").read_text().strip()
    assert first == second == [f"ID {run_id} True", "OPEN None"]
    assert list((tmp_path / "wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"))
