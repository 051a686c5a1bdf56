"""Runs of train.py as a user starts them."""

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
import timm
import torch
from omegaconf import OmegaConf

from imagenet_opt.callbacks.bottleneck import Bottleneck
from imagenet_opt.cli.dashboard import SECTIONS, SWEEP
from imagenet_opt.cli.main import run
from imagenet_opt.errors import ConfigError
from imagenet_opt.run.record import read_summary
from tests.processes import Forked, path_with, run_train

REPOSITORY = Path(__file__).parents[1]

TINY = (
    "model.name=test_resnet",
    "data.image_size=32",
    "data.batch_size=6",
    "data.num_workers=1",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.precision=32-true",
    "trainer.deterministic=true",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=2",
    "schedule.warmup_epochs=0",
    "logger=csv",
)


def environment(cache: Path, **more: str) -> dict[str, str]:
    return os.environ | {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | more


def train(folder: Path, root: Path | str, *overrides: str, **more: str) -> subprocess.CompletedProcess[str]:
    """One run of train.py on `root` into `folder`, without a terminal."""
    arguments = [f"data.root={root}", f"hydra.run.dir={folder}", *TINY, *overrides]
    return run_train(arguments, cwd=folder.parent, environment=environment(folder.parent, **more))


def opened(path: Path) -> dict:
    """A checkpoint, without what began its run, its recipes and seconds."""
    return {k: v for k, v in torch.load(path, weights_only=True).items() if k not in ("begun", "recipes", "starts")}


def assert_same(first: object, second: object, place: str = "") -> None:
    """Compare dicts, lists and tensors to the last bit."""
    assert type(first) is type(second), place
    if isinstance(first, dict):
        assert first.keys() == second.keys(), place
        for key in first:
            assert_same(first[key], second[key], f"{place}/{key}")
    elif isinstance(first, list | tuple):
        assert len(first) == len(second), place
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            assert_same(a, b, f"{place}/{i}")
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second), place
    else:
        assert first == second, place


def metrics(folder: Path) -> list[dict[str, str]]:
    """Rows of metrics.csv, without columns that depend on the clock, and without empty cells."""
    timed = ("throughput/", "host/", "gpu/", "loader/", "checkpoint/", "timeline/", "bottleneck/")
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if v and not k.startswith(timed)} for row in csv.DictReader(file)]


CLEAN = ("callbacks.checkpoint.every_n_steps=2", "price_per_hour=0.5")


@pytest.fixture(scope="module")
def clean(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("clean") / "run"
    done = train(folder, images_root, *CLEAN)
    assert done.returncode == 0, done.stderr
    assert "run finished" in done.stdout
    return folder


def test_summary_log_and_rows_of_a_run(clean: Path) -> None:
    summary = read_summary(clean)
    throughput = (f"throughput/{key}" for key in ("it_per_second", "images_per_second", "data_wait_fraction"))
    startup = (f"startup/{key}_seconds" for key in ("import", "first_batch", "first_step"))
    for key in ("val/acc1", "memory/peak_gib", *throughput, *startup):
        assert summary[key] >= 0, key
    assert (summary["loader/num_workers"], summary["loader/prefetch_factor"]) == (1, 4)
    log = (clean / "train.log").read_text()
    for words in ("random weights", str(clean), "acceleration", "epoch 1/2  step 2/6  loss ", "epoch 2/2  val  "):
        assert words in log, words
    assert summary["steps"] == 12  # 39 images make 6 whole batches of 6, twice
    rows = metrics(clean)
    assert [int(row["step"]) for row in rows if "train/loss" in row] == [1, 3, 5, 7, 9, 11]
    assert ["val/acc1" in row for row in rows].count(True) == 2


def test_every_chart_of_the_workspace_has_numbers(clean: Path) -> None:
    with (clean / "metrics.csv").open() as file:
        logged = set(next(csv.reader(file)))
    drawn = {metric for metrics in SECTIONS.values() for metric in metrics if not metric.startswith("gpu/")}
    shares = {*re.findall(r"`(bottleneck/\w+)`", Bottleneck.__doc__ or "")}  # this run is too short for them
    sampled = {key for key in drawn if key.startswith("host/")}  # a row of this run may be shorter than a sample
    assert drawn - logged <= {"val/acc5", *shares, *sampled}  # accuracy of five needs more than five classes
    summary = read_summary(clean)
    assert SWEEP.keys() - summary.keys() == {"gpu/utilization_percent"}
    assert summary["loader/batch_size"] == 6


def test_the_network_opens_in_plain_timm(clean: Path) -> None:
    checkpoint = opened(clean / "last.ckpt")
    network = timm.create_model("test_resnet", num_classes=3)
    network.load_state_dict(checkpoint["network"], strict=True)
    assert checkpoint["network_config"]["num_classes"] == 3
    assert checkpoint["network_config"]["classes"] == ["class0", "class1", "class2"]
    assert checkpoint["network_config"]["val_flip"] is False


def test_the_record_of_a_run_and_its_evaluation_are_verified(
    clean: Path, images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(clean, tmp_path / "run"))
    run("evaluate", [f"ckpt={folder}", f"data.root={images_root}", f"data.cache_dir={tmp_path}", "data.num_workers=0"])
    run("report", ["--verify", str(folder)])
    output = capsys.readouterr().out
    assert "1.846 epochs of 39 images" in output and "$" in output  # 12 batches of 6
    assert "of 39 images" in output.rpartition("top-1")[2] and "Not compared" not in output
    shutil.copy(folder / "best.ckpt", folder / "last.ckpt")
    (folder / "best.ckpt").write_bytes(b"another")
    with pytest.raises(ConfigError, match=r"evaluation\.sha256"):
        run("report", ["--verify", str(folder)])


@pytest.mark.slow
def test_a_warned_slurm_job_saves_requeues_and_resumes_exactly(clean: Path, images_root: Path, tmp_path: Path) -> None:
    path = path_with(tmp_path, scontrol=f'echo "$@" > "{tmp_path}/asked"\n')
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_STEP_ID": "0", "PATH": path}
    slow = ("data.added_latency_ms=300", "data.reads_in_flight=1")
    train_py = [sys.executable, str(REPOSITORY / "train.py")]
    arguments = [*train_py, f"data.root={images_root}", *TINY, "callbacks.checkpoint.every_n_steps=2", *slow]
    with (tmp_path / "output").open("w") as file:
        job = Forked(arguments, stdout=file, cwd=tmp_path, env=environment(tmp_path, **slurm))
    folder = tmp_path / "runs/slurm_7"
    deadline = time.monotonic() + 120
    while not (folder / "checkpoints/step_00000002.ckpt").exists() and time.monotonic() < deadline:
        assert job.poll() is None
        time.sleep(0.01)
    job.send_signal(signal.SIGUSR1)
    code, err = job.wait(120), (tmp_path / "output").read_text()
    assert code == 75, err
    assert "Preempted: SIGUSR1: step" in err and f"hydra.run.dir={folder}" in err and "Traceback" not in err
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
    record = json.loads((folder / "preempted.json").read_text())
    assert record["reason"] == "SIGUSR1" and opened(folder / record["checkpoint"])["global_step"] == record["step"]

    done = train(folder, images_root, "callbacks.checkpoint.every_n_steps=2")
    assert done.returncode == 0, done.stderr
    assert f"at step {record['step']}" in done.stdout
    assert not (folder / "preempted.json").exists()
    assert [step for step, _ in json.loads((folder / "record.json").read_text())["starts"]] == [0, record["step"]]
    assert_same(opened(clean / "last.ckpt"), opened(folder / "last.ckpt"))
    assert metrics(clean) == metrics(folder)


@pytest.mark.slow
def test_the_same_command_again_changes_nothing(clean: Path, images_root: Path) -> None:
    files = [clean / name for name in ("record.json", "metrics.csv", ".hydra/config.yaml", ".hydra/overrides.yaml")]
    before = [file.read_bytes() for file in files]
    refused = train(clean, images_root, *CLEAN, "trainer.max_epochs=3", "optimizer=adamw")
    assert refused.returncode == 2, refused.stderr
    assert before == [file.read_bytes() for file in files]
    again = train(clean, images_root, *CLEAN)
    assert again.returncode == 0, again.stderr
    assert "12 steps" in again.stdout and "run finished" not in again.stdout
    assert before == [file.read_bytes() for file in files]
    numbers = read_summary(clean)
    files[0].unlink()  # as a crash before the summary does
    assert "run finished" in train(clean, images_root, *CLEAN).stdout
    for key in ("val/acc1", "val/loss", "best/val/acc1", "best/epoch", "steps"):
        assert read_summary(clean)[key] == numbers[key]


@pytest.mark.slow
def test_a_new_run_in_a_used_folder_begins_without_the_old_run(images_root: Path, tmp_path: Path) -> None:
    """A job of a sweep with other values."""
    run, job = tmp_path / "run", {"IMAGENET_OPT_SWEEP_JOB": "1"}
    for lr in (0.125, 0.5):
        done = train(run, images_root, "trainer.max_steps=2", f"optimizer.lr={lr}", **job)
        assert done.returncode == 0, done.stderr
        (run / "wandb_id.txt").write_text(f"{lr}\n")
    for folder, lr in ((run / "replaced_1", 0.125), (run, 0.5)):
        assert opened(folder / "last.ckpt")["optimizer_states"][0]["param_groups"][0]["initial_lr"] == lr * 6 / 256
        assert [row["step"] for row in metrics(folder)] == ["1"]
    assert (run / "replaced_1/wandb_id.txt").read_text() == "0.125\n" and (run / "replaced_1/timeline").is_dir()


@pytest.mark.slow
def test_a_job_that_began_anew_goes_on_when_it_is_queued_again_and_keeps_the_record_of_its_first_recipe(
    images_root: Path, tmp_path: Path
) -> None:
    run, anew = tmp_path / "run", ("resume_from=null", "logger=[csv]")
    for more, restarts in (("trainer.max_steps=2", "0"), ("trainer.max_steps=4", "1")):
        smoothing = 0.25 if restarts == "0" else 0.5
        done = train(run, images_root, *anew, more, f"model.label_smoothing={smoothing}", SLURM_RESTART_COUNT=restarts)
        assert done.returncode == 0, done.stderr
    assert "model.label_smoothing 0.25 -> 0.5" in done.stdout + done.stderr
    assert [row["step"] for row in metrics(run)] == ["1", "3"] and not (run / "replaced_1").exists()
    for name, smoothing in (("config_until_step_2", 0.25), ("config", 0.5)):
        assert OmegaConf.load(run / f".hydra/{name}.yaml").model.label_smoothing == smoothing


@pytest.mark.slow
def test_a_mistake_ends_in_one_line_without_a_traceback(images_root: Path, tmp_path: Path) -> None:
    done = train(tmp_path / "run", images_root, "hydra.run.dir=/proc/none")
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "RunFolderError: " in done.stderr and "/proc/none: No such file" in done.stderr
