"""The plan command as a user meets it."""

import json
from pathlib import Path

import pytest

from imagenet_opt.cli.plan import main, parse
from imagenet_opt.errors import ConfigError
from tests.conftest import write_images


def test_a_recipe_is_planned_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    main(["experiment=rn18_ffcv", "--price-per-hour", "1.5", "--loader-rate", "1500", "--json", str(file)])
    output, plan = " ".join(capsys.readouterr().out.split()), json.loads(file.read_text())
    assert (plan["total_steps"], plan["published_top1"], plan["reproduced"]) == (20016, 66.9, None)
    assert (plan["changed"], plan["expected_top1"]) == ([], 66.9)
    assert len(plan["lr"]) == 16 and [phase["image_size"] for phase in plan["phases"]] == [160, 192]
    assert plan["price"] == pytest.approx(1.5 * plan["gpu_hours"])
    assert f"20,016 steps, {plan['gpu_hours']:.1f} hours on one GPU" in output and f": ${plan['price']:,.2f}" in output
    assert "top-1: 66.9 %" in output and "Reproduced here: no" in output and "estimate for an A10G" in output


def test_a_changed_recipe_promises_no_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["trainer.max_epochs=4", "~callbacks.resolution_schedule"]
    main(["experiment=rn18_ffcv", "data.num_workers=3", *short, "--json", f"{tmp_path}/plan.json"])
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["changed"] == ["trainer.max_epochs", "callbacks.resolution_schedule"] and plan["expected_top1"] is None
    output = " ".join(capsys.readouterr().out.split())
    assert "Published top-1: none for these epochs, only for 16, 24, 32, 40, 56, 88" in output


def test_the_data_decides_the_steps(images_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [f"data.root={images_root}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=4"]
    main([*own, "trainer.max_epochs=3", "model=resnet18", "--json", f"{tmp_path}/plan.json"])
    assert json.loads((tmp_path / "plan.json").read_text())["total_steps"] == 3 * (39 // 4)
    assert "it could not be measured: 39 training images are too few" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_the_loader_is_measured_at_the_size_of_each_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagenet_opt.plan.plan.SECONDS", 0.2)
    root = write_images(tmp_path / "images", num_classes=2, per_class=40)
    sizes = [f"callbacks.resolution_schedule.{value}" for value in ("start=32", "end=64", "step=32")]
    own = [f"data.root={root}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=8", "data.num_workers=1"]
    run = ["model=resnet18", "trainer.max_epochs=8", "+callbacks=resolution_schedule", *sizes]
    main([*own, *run, "--rate", "1e9", "--json", f"{tmp_path}/plan.json"])
    phases = json.loads((tmp_path / "plan.json").read_text())["phases"]
    assert [phase["image_size"] for phase in phases] == [32, 64]
    for phase in phases:  # so fast a GPU waits for any loader
        assert phase["hours"] == pytest.approx(phase["steps"] * 8 / phase["images_per_second_loaded"] / 3600)


def test_numbers_of_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match="--loader-rate 0"):
        parse(["--loader-rate", "0"])
