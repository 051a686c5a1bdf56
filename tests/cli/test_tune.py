import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_opt.cli import arguments
from imagenet_opt.cli.tune import main
from imagenet_opt.config.compose import composed
from imagenet_opt.config.experiment_file import how_to_train


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
    config = composed(tuple(words))
    assert config.data.batch_size == 4
    assert {key: OmegaConf.select(config, key) for key in same} == same


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
