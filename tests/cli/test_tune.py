import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from imagenet_opt import machine
from imagenet_opt.cli import arguments
from imagenet_opt.cli.tune import main
from imagenet_opt.config.compose import leave_out_idle
from imagenet_opt.config.experiment_file import how_to_train
from imagenet_opt.config.overrides import complete
from imagenet_opt.probe.memory import most_images
from imagenet_opt.tuning.climb import Setting
from tests.conftest import write_images


def composed_from(conf: Path, overrides: list[str]) -> DictConfig:
    with initialize_config_dir(str(conf), version_base="1.3"):
        config = compose("train", ["~hydra", *complete(overrides)])
    leave_out_idle(config, overrides)
    return config


def one_of_each_wins(function: str, job: dict[str, Any], **limits: Any) -> dict[str, Any]:
    """In place of a process: channels first, compiled, in batches of four is the fastest."""
    config = job["config"]
    batch, acceleration = config["data"]["batch_size"], config["callbacks"]["acceleration"]
    rate = 100.0 * {2: 1.0, 4: 1.3, 8: 1.2}[batch]
    rate *= (1.0 if acceleration["channels_last"] else 1.5) * (
        0.5 if config["trainer"]["precision"] == "32-true" else 1
    )
    rate *= 1.4 if acceleration["compile"] else 1.0
    return {"windows": [rate, rate], "compile_seconds": 20.0 if acceleration["compile"] else None}


def a_hundred_each(testbed: Any, setting: Setting, seconds: float) -> float:
    return 100.0 * setting["data.num_workers"]


@pytest.mark.slow
def test_the_experiment_has_all_measurements_and_trains(
    tmp_path: Path,
    own_conf: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("imagenet_opt.probe.memory.call_isolated", one_of_each_wins)
    monkeypatch.setattr("imagenet_opt.tuning.tuner.rate_of", a_hundred_each)
    monkeypatch.setattr(machine, "usable_cpus", lambda: 4)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    root = write_images(tmp_path / "images", num_classes=3, per_class=22)
    overrides = [f"data.root={root}", "data.batch_size=2", "data.num_workers=1", "trainer.accelerator=cpu"]
    overrides += [f"data.cache_dir={tmp_path}", "trainer.devices=1", "optimizer.lr=0.5"]
    main(overrides)
    (file,) = (own_conf / "experiment").glob("tuned_*_tune.yaml")
    assert yaml.safe_load(file.read_text()) == {
        "trainer": {"precision": "mixed"},
        "callbacks": {
            "acceleration": {"channels_last": False, "tf32": True, "compile": True, "compile_mode": "default"}
        },
        "data": {"batch_size": 4, "num_workers": 4},
    }
    line = capsys.readouterr().err.partition("train with it: ")[2].strip()
    assert line.endswith(f"experiment={file.stem}") and "batch_size" not in line and "num_workers" not in line
    config = composed_from(own_conf, shlex.split(line)[2:])
    assert (config.data.batch_size, config.data.num_workers, config.optimizer.lr) == (4, 4, 0.5)
    assert (config.callbacks.acceleration.compile, config.callbacks.acceleration.channels_last) == (True, False)
    assert machine.versions()["torch"] in file.read_text() and "lr 0.00781 for 4 images" in file.read_text()


@pytest.mark.parametrize(
    ("overrides", "same"),
    [
        (["data=demo", "data.batch_size=24"], {"schedule.warmup_epochs": 1, "model.name": "resnet10t"}),
        (["data.root=/my data", "model.name=resnet34"], {"data.root": "/my data", "model.name": "resnet34"}),
        (
            ["+experiment=[baseline,tuned]", "data=folder", "data.root=/d"],
            {"data.root": "/d", "optimizer.fused": False},
        ),
        (["rehearse=a10g", "data.root=/d"], {"data.root": "/d", "callbacks.rehearsal.name": "a10g"}),
    ],
)
def test_the_printed_command_trains_the_tuned_configuration(
    overrides: list[str], same: dict[str, Any], own_conf: Path
) -> None:
    """data=demo implies its recipe, and the command has no key that the file sets."""
    file = own_conf / "experiment/tuned.yaml"
    file.write_text("# @package _global_\ndata:\n  batch_size: 4\n")
    line = how_to_train(file, overrides)
    _, program, *words = shlex.split(line.partition("train with it: ")[2])
    assert program.startswith("train") and sum("experiment=" in word for word in words) == 1
    config = composed_from(own_conf, words)
    assert config.data.batch_size == 4
    assert {key: OmegaConf.select(config, key) for key in same} == same


def test_a_quarter_of_an_epoch_is_the_most() -> None:
    assert [most_images(num) for num in (1_281_167, 2000, 39, 20, 3)] == [1024, 496, 8, 4, 1]


@pytest.mark.slow
def test_a_small_tuning_of_the_demo_data(
    tmp_path: Path, own_conf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the settings without a turn, and leaves no other files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arguments, "_LEAST_SECONDS", 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = tmp_path / "tune.json"
    small = ["model.name=test_resnet", "data.image_size=32", "data.num_workers=1", "trainer.accelerator=cpu"]
    main([*small, "data.cache_dir=cache", "data.num_train=400", "data.batch_size=8", "--budget=3s", f"--json={file}"])
    content = json.loads(file.read_text())
    assert content["simulated"] is None and content["lacks_time"] and content["budget_seconds"] == 3
    first, *_, last = content["tables"]
    assert first["title"].startswith("device alone") and first["rows"][0][1] > 0 and last["title"] == "loader alone"
    assert "--budget 20m" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "conf", "tune.json"]
