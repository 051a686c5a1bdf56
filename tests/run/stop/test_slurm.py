"""What a SLURM job is called, and how it is queued again."""

import os
import signal
from pathlib import Path

import pytest

from imagenet_opt.config.overrides import follow_job, slurm_folder
from imagenet_opt.errors import Preempted
from imagenet_opt.training.preempted import SWEEP_JOB, leave, requeue


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, "slurm_7"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "slurm_7"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}, "slurm_7_step2"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "slurm_7_3"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "interactive"}, None),
    ],
)
def test_the_folder_follows_the_job(environment: dict[str, str], name: str | None) -> None:
    assert slurm_folder(environment) == name


def test_a_given_folder_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_STEP_ID", "SLURM_JOB_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert follow_job(["seed=1"]) == ["hydra.run.dir=runs/slurm_7", "seed=1"]
    assert follow_job(["-m", "seed=1,2"]) == ["-m", "hydra.sweep.dir=runs/slurm_7", "seed=1,2"]
    for word in ("hydra.run.dir=mine", "+hydra.run.dir=mine", "++hydra.run.dir=mine"):
        assert follow_job([word]) == [word]


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for SLURM's: writes what it is asked to `asked` beside it."""
    file = tmp_path / "scontrol"
    file.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "not yours" >&2\nexit ${{STATUS:-0}}\n')
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_JOB_NAME", raising=False)
    return file


def test_a_refused_requeue_is_reported(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert requeue() and not caplog.text
    assert (scontrol.parent / "asked").read_text() == "requeue 7\n"
    monkeypatch.setenv("STATUS", "1")
    assert not requeue() and "not yours" in caplog.text
    monkeypatch.setenv("PATH", "/nowhere")
    caplog.clear()
    assert not requeue() and "submit the job again yourself" in caplog.text


def test_a_run_is_queued_again_after_slurms_warning_but_a_sweeps_job_by_its_sweep(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scontrol.parent / "asked"
    monkeypatch.setenv(SWEEP_JOB, "1")
    assert leave(Preempted("SIGUSR1: step 1"), signal.SIGUSR1) == 75
    assert not asked.exists()
    monkeypatch.delenv(SWEEP_JOB)
    leave(Preempted("SIGTERM: step 1"), signal.SIGTERM)
    assert not asked.exists()
    leave(Preempted("SIGUSR1: step 1"), signal.SIGUSR1)
    assert asked.exists()
