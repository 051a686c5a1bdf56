"""Keys and passwords stay in the environment: a run writes, prints and logs none."""

import os
import subprocess
from pathlib import Path

import pytest

from imagenet_opt.config.compose import composed
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.config.trust import looks_secret, names_secret
from imagenet_opt.errors import ConfigError
from tests.processes import run_train
from tests.test_train import TINY

WANDB_KEY = "0123456789abcdef" * 2 + "c0ffee12"
COMMIT = "6ee740e" * 5 + "544b9"
CANARIES = {
    "WANDB_API_KEY": WANDB_KEY,
    "AWS_ACCESS_KEY_ID": "AKIA" + "Q7CANARY" * 2,
    "AWS_SECRET_ACCESS_KEY": "wJalrCanary+K7MDENG/bPxRfiCYEXAMPLE",
    "HF_TOKEN": "hf_" + "CanaryCanaryCanary" * 2,
    "MY_UNHEARD_OF_VARIABLE": "a canary that sings of nothing known",
}


def command(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "WANDB_MODE": "offline"}
    return run_train([*arguments], cwd=Path.cwd(), environment=environment | CANARIES | more)


@pytest.mark.slow
def test_a_run_writes_and_prints_no_value_of_the_environment(images_root: Path, tmp_path: Path) -> None:
    small = [word for word in TINY if not word.startswith("logger=")]
    run = [f"data.root={images_root}", f"hydra.run.dir={tmp_path}/run", "trainer.max_steps=2"]
    done = command(*run, *small, XDG_CACHE_HOME=str(tmp_path / "cache"), HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    written = {str(file): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for expected in ("run/.hydra/config.yaml", "run/.hydra/hydra.yaml", "run/metrics.csv", "run/last.ckpt", ".wandb"):
        assert any(name.endswith(expected) for name in written), expected
    written |= {"output": (done.stdout + done.stderr).encode()}
    for name, value in CANARIES.items():
        for form in (value, *value.split("/")):
            assert [file for file, content in written.items() if form.encode() in content] == [], name


def test_train_py_refuses_a_key_before_it_writes_or_prints_the_key(tmp_path: Path) -> None:
    recipe = tmp_path / "conf/experiment/mine.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(f"# @package _global_\nlogger: {{wandb: {{name: {WANDB_KEY}}}}}\n")
    folders = (f"hydra.run.dir={tmp_path}/run", f"hydra.sweep.dir={tmp_path}/run")
    for words, key in (
        (["-m", f"logger.wandb.project=x,{WANDB_KEY}"], "logger.wandb.project"),
        (["--config-dir", str(tmp_path / "conf"), "experiment=mine"], "logger.wandb.name"),
    ):
        done = command(*words, *folders)
        assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
        assert f"ConfigError: {key} looks like a key" in done.stderr and "WANDB_API_KEY" in done.stderr
        assert WANDB_KEY not in done.stdout + done.stderr and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "override",
    [
        "+logger.wandb.api_key=abc",
        "api_key=abc",  # not there: Hydra would repeat it
        "++data.aws_secret_access_key=abc",
        "++db.db_pass=abc",
        f"logger.wandb.name=local-{WANDB_KEY}",
        "logger.wandb.name=wandb_v1_abcdefghijklmnop",
        f"data.root=/data/{CANARIES['AWS_ACCESS_KEY_ID']}",
        f"logger.wandb.name={CANARIES['HF_TOKEN']}",
        "data.root=s3://user:pass-word@bucket/imagenet",
        "data.root='https://bucket/i?X-Amz-Signature=77'",
        f"logger.wandb.name='Bearer {'a1B2' * 9}'",
        "logger.wandb.name=${oc.env:DB_PASS}",
        f"+callbacks.x.map={{a:{WANDB_KEY}}}",
        f"+callbacks.x.{WANDB_KEY}=1",
    ],
)
def test_a_key_is_refused_and_not_repeated(override: str) -> None:
    with pytest.raises(ConfigError, match="environment") as caught:
        composed((override,))
    value = override.partition("=")[2]
    assert value not in str(caught.value) and WANDB_KEY not in str(caught.value)


def test_values_that_only_resemble_a_key_are_accepted() -> None:
    project = ("model.options.global_pool=token", "run_folder=runs/${oc.env:SLURM_JOB_ID,none}")
    composed((*project, "data.root=/fsx/user@host:8080/imagenet", "logger.wandb.name=abcdef0123456789"))
    composed((f"data.root=/data/{COMMIT}/imagenet", f"logger.wandb.name=resnet50-{COMMIT}"))


def test_the_shipped_configuration_resembles_no_secret() -> None:
    for file in config_folder().rglob("*.yaml"):
        for line in file.read_text().splitlines():
            assert not names_secret(line.partition(":")[0].strip()) and not looks_secret(line), line
