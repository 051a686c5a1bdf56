import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from imagenet_opt.cli import overrides as cli_overrides
from imagenet_opt.cli import tune_memory
from imagenet_opt.cli.build import build_run
from imagenet_opt.cli.overrides import complete, config_folder
from imagenet_opt.cli.tune import HELP, main, parse
from imagenet_opt.cli.tune_batch import Batch, _fit
from imagenet_opt.cli.tune_compute import AS_IT_IS, _formats, _ways
from imagenet_opt.cli.tune_memory import MemoryTrials, largest_size, most_images
from imagenet_opt.cli.tuned import how_to_train, write_tuned
from imagenet_opt.errors import ConfigError, OutOfMemory
from imagenet_opt.measure.deadline import OutOfTime
from tests.cli.test_build import composed, tiny

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration with a folder of experiments that may be written."""
    conf = tmp_path / "conf"
    conf.mkdir()
    for entry in config_folder().iterdir():
        (conf / entry.name).symlink_to(entry) if entry.name != "experiment" else (conf / entry.name).mkdir()
    for file in (config_folder() / "experiment").glob("*.yaml"):
        (conf / "experiment" / file.name).write_text(file.read_text())
    monkeypatch.setattr(cli_overrides, "config_folder", lambda: conf)
    return conf


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    said = capsys.readouterr().out
    assert said.strip() == HELP.strip()
    assert all(flag in said for flag in ("--budget", "--json", "data.batch_size=auto"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--budget=soon"], "--budget soon must be a time"),
        (["--budget=2h"], "--budget"),
        (["--aply"], r"--aply.*imagenet-opt tune --help"),
        (["--json=/nowhere/found.json"], r"--json .* cannot be written"),
    ],
)
def test_bad_input_is_said_before_anything_is_measured(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(argv)


def test_the_budget_is_ten_minutes() -> None:
    assert parse(["data=demo"]).budget_seconds == 600


def test_what_was_found_becomes_an_experiment_that_trains(own_conf: Path, images_root: Path, tmp_path: Path) -> None:
    changes = ("data.batch_size=4", "callbacks.acceleration.channels_last=false", "+model.micro_batch_size=2")
    file = write_tuned("tune", changes, ["measured: 100 -> 130 images/s", "a\nname \x1b[31m"])
    assert yaml.safe_load(file.read_text())["model"] == {"micro_batch_size": 2}
    assert "\x1b" not in file.read_text() and "# measured: 100 -> 130 images/s\n" in file.read_text()
    words = [f"+experiment=[aggressive,{file.stem}]", f"data.root={images_root}", "model.name=test_resnet"]
    own = ["~hydra", f"run_folder={tmp_path}/run", f"data.cache_dir={tmp_path}/cache", "logger=csv"]
    small = ["trainer.accelerator=cpu", "trainer.devices=1", "trainer.max_steps=1", "data.image_size=32"]
    with initialize_config_dir(str(own_conf), version_base="1.3"):
        config = compose("train", complete([*own, *words, *small, "callbacks.acceleration.compile=false"]))
    assert (config.data.batch_size, config.callbacks.acceleration.channels_last) == (4, False)
    run = build_run(config)
    run.trainer.fit(run.model, datamodule=run.data)
    assert run.trainer.global_step == 1 and run.model.micro_batch_size == 2


def test_the_line_to_train_with_has_the_experiments_given() -> None:
    file = Path("conf/experiment/tuned_host_tune.yaml")
    assert how_to_train(file, ["data=demo"]).endswith("train with +experiment=tuned_host_tune")
    assert how_to_train(file, ["+experiment=baseline"]).endswith("+experiment=[baseline,tuned_host_tune]")


def test_only_what_differs_on_the_device_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    config = composed(tmp_path, "data.root=/data")
    assert list(dict(_formats(config, CPU))) == [AS_IT_IS, "mixed, channels first"], "mixed is float32 there"
    assert list(dict(_ways(config, CPU))) == [AS_IT_IS, "default"]
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    formats = dict(_formats(config, CUDA))
    assert len(formats) == 4 and "callbacks.acceleration.tf32=true" in formats["32-true with tf32, channels first"]
    assert list(dict(_ways(config, CUDA))) == [AS_IT_IS, "cuda_graph", "default", "reduce-overhead", "max-autotune"]
    config.callbacks.acceleration.compile = True
    ways = dict(_ways(config, CUDA))
    assert list(ways) == [AS_IT_IS, "off", "cuda_graph", "reduce-overhead", "max-autotune"]
    assert ways["max-autotune"][-1] == "callbacks.acceleration.cuda_graph=false", "one or the other"


def test_memory_is_asked_at_the_largest_resolution_of_the_run(tmp_path: Path) -> None:
    assert largest_size(composed(tmp_path, "data.root=/data")) == 224
    growing = composed(tmp_path, "data.root=/data", "+callbacks=resolution_schedule")
    assert largest_size(growing) == 192


@pytest.mark.parametrize(("num_train", "most"), [(1_281_167, 1024), (2000, 496), (39, 8), (20, 4), (3, 1)])
def test_a_quarter_of_an_epoch_is_the_most(num_train: int, most: int) -> None:
    assert most_images(num_train) == most


@dataclass
class Holding(MemoryTrials):
    """Trials on a device that holds `capacity` images at once, until there is no time for more."""

    capacity: int = 0
    num: int = 100

    def _try(self, batch: int, micro: int | None) -> Any:
        if len(self.tried) == self.num:
            raise OutOfTime
        return {"peak_gib": 1.0 if (micro or batch) <= self.capacity else None}


@pytest.mark.parametrize(
    ("wanted", "capacity", "fitting", "changes"),
    [
        (384, 200, 200, ("model.micro_batch_size=192",)),
        (384, 700, 696, ()),
        (50, 50, 50, ()),
        (50, 49, 48, ("model.micro_batch_size=32",)),
        (50, 4000, 1024, ()),
        (6, 1, 1, ("model.micro_batch_size=1",)),
    ],
)
def test_the_wanted_batch_is_kept(wanted: int, capacity: int, fitting: int, changes: tuple[str, ...]) -> None:
    found = Batch(wanted)
    _fit(found, Holding(OmegaConf.create(), capacity=capacity), wanted, 1024)
    assert (found.fitting, found.changes) == (fitting, changes)


def test_where_the_time_ends_what_was_seen_to_fit_counts() -> None:
    found = Batch(256)
    _fit(found, Holding(OmegaConf.create(), capacity=600, num=2), 256, 1024)
    assert (found.fitting, found.changes) == (512, ())
    assert found.notes == ["not tried: budget: other batch sizes"]


def test_a_device_that_holds_nothing_is_said_so() -> None:
    with pytest.raises(OutOfMemory, match=r"no batch from 1 images on fits.*data.image_size"):
        _fit(Batch(64), Holding(OmegaConf.create()), 64, 1024)


@pytest.mark.slow
def test_out_of_memory_ends_the_trial_only(
    images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    config = tiny(tmp_path, images_root, "model.num_classes=3")
    monkeypatch.setattr(tune_memory, "SPARE", 0.9999)
    trials = MemoryTrials(config)
    assert not trials.fits(16)
    assert not list(tmp_path.glob("run*")) and len(trials.tried) == 1


@pytest.mark.slow
def test_a_small_tuning_of_the_demo_data(
    tmp_path: Path, own_conf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checked: None
) -> None:
    """It keeps to its budget, says what it did not try, and leaves nothing but its files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = tmp_path / "tune.json"
    small = ["model.name=test_resnet", "data.image_size=32", "data.num_workers=1", "trainer.accelerator=cpu"]
    main([*small, "data.cache_dir=cache", "data.num_train=400", "data.batch_size=8", "--budget=10s", f"--json={file}"])
    found = json.loads(file.read_text())
    said = capsys.readouterr()
    assert found["simulated"] is None and found["budget_seconds"] == 10
    titles = [sheet["title"] for sheet in found["sheets"]]
    assert titles[0].startswith("device alone") and titles[-1] == "loader alone"
    assert "what fits into the memory" in titles and found["sheets"][0]["rows"][0][1] > 0
    assert "not tried: budget" in said.out and "lr 0.0156 at batch 8" in said.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "conf", "tune.json"]


def test_a_simulated_gpu_has_its_loader_tuned_only(
    tmp_path: Path, own_conf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checked: None
) -> None:
    monkeypatch.chdir(tmp_path)
    slow = ["rehearse=a10g", "callbacks.rehearsal.images_per_second=1", "data.num_workers=1"]
    main([*slow, "data.cache_dir=cache", "data.num_train=400", "--budget=10s", "--json=tune.json"])
    found = json.loads((tmp_path / "tune.json").read_text())
    assert (found["simulated"], found["overrides"]) == ("a10g", [])
    (sheet,) = found["sheets"]
    assert sheet["title"] == "loader alone, simulated a10g" and len(sheet["rows"]) == 1
    said = capsys.readouterr().out
    assert "precision, compilation and batch need the device itself" in said and "the GPU is the limit" in said
