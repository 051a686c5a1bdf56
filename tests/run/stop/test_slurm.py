"""What a SLURM job is called, how it is queued again, and the command that resumes a run from every folder."""

import os
import shlex
import signal
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from imagenet_opt.config.overrides import follow_job
from imagenet_opt.errors import Preempted
from imagenet_opt.training import preempted
from tests.processes import path_with


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, []),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, ["slurm_7"]),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}, ["slurm_7_step2"]),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, ["slurm_7_3"]),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "interactive"}, []),
    ],
)
def test_the_folder_follows_the_job_and_a_given_folder_stays(
    environment: dict[str, str], folder: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "TORCHELASTIC_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert follow_job(["seed=1"]) == [*(f"hydra.run.dir=runs/{name}" for name in folder), "seed=1"]
    assert follow_job(["-m", "seed=1,2"]) == ["-m", *(f"hydra.sweep.dir=runs/{name}" for name in folder), "seed=1,2"]
    for word in ("hydra.run.dir=mine", "+hydra.run.dir=mine", "++hydra.run.dir=mine"):
        assert follow_job([word]) == [word]


def test_a_run_is_queued_again_after_slurms_warning_but_a_sweeps_job_by_its_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = tmp_path / "asked"
    scontrol = f'echo "$@" > {asked}\necho "not yours" >&2\nexit ${{STATUS:-0}}\n'
    monkeypatch.setenv("PATH", path_with(tmp_path, scontrol=scontrol))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_JOB_NAME", raising=False)
    preempted.leave(Preempted("SIGTERM: step 1"), signal.SIGTERM)
    with monkeypatch.context() as sweep:
        sweep.setenv(preempted.SWEEP_JOB, "1")
        assert preempted.leave(Preempted("SIGUSR1: step 1"), signal.SIGUSR1) == 75
    assert not asked.exists()
    preempted.leave(Preempted("SIGUSR1: step 1"), signal.SIGUSR1)
    assert asked.read_text() == "requeue 7\n" and not caplog.text
    monkeypatch.setenv("STATUS", "1")
    assert not preempted.requeue() and "not yours" in caplog.text
    monkeypatch.setenv("PATH", "/nowhere")
    assert not preempted.requeue()


@pytest.mark.parametrize(
    ("line", "program", "launcher"),
    [
        ("/bin/imagenet-opt train seed=1 resume_from=a.ckpt", "imagenet-opt train", {}),
        ("train.py seed=1 hydra.run.dir=runs/x --config-dir conf", "python {here}/train.py", {}),
        ("train.py seed=1", "torchrun ... {here}/train.py", {"TORCHELASTIC_RUN_ID": "none"}),
    ],
)
def test_the_command_is_the_typed_one_with_an_absolute_folder(
    line: str, program: str, launcher: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(preempted, "typed", line.split())
    begin = program.format(here=tmp_path)
    command = preempted.command("hydra.run.dir", Path("it's, an=app"))
    assert command.startswith(f"{begin} ")
    overrides, unknown = get_args_parser().parse_known_args(shlex.split(command.removeprefix(begin)))
    parsed = {each.key_or_group: each.value() for each in OverridesParser.create().parse_overrides(overrides.overrides)}
    assert parsed == {"seed": 1, "hydra.run.dir": str(tmp_path / "it's, an=app")} and not unknown
