"""The plan command as a user meets it."""

import json
from pathlib import Path

import pytest

from imagenet_opt.cli.plan import main, parse
from imagenet_opt.errors import ConfigError


def test_a_recipe_is_planned_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    main(["experiment=rn18_ffcv", "--price-per-hour", "1.5", "--loader-rate", "1500", "--json", str(file)])
    output, plan = " ".join(capsys.readouterr().out.split()), json.loads(file.read_text())
    assert (plan["total_steps"], plan["published_top1"], plan["reproduced"]) == (20016, 66.9, None)
    assert len(plan["lr"]) == 16 and [phase["image_size"] for phase in plan["phases"]] == [160, 192]
    assert plan["price"] == pytest.approx(1.5 * plan["hours"])
    assert f"20,016 steps, {plan['hours']:.1f} hours" in output and f": ${plan['price']:,.2f}" in output
    main(["experiment=rn18_ffcv", "--price-per-hour", "12", "trainer.devices=8", "--json", str(file)])
    plan, output = json.loads(file.read_text()), capsys.readouterr().out
    assert plan["price"] == pytest.approx(12 * plan["hours"]) and output.count("$") == 1 == output.count(" hours on ")


def test_a_recipe_of_another_length_has_no_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    main(["experiment=rn18_ffcv", "trainer.max_epochs=4"])
    output = " ".join(capsys.readouterr().out.split())
    assert "Published top-1: none for these epochs, only for 16, 24, 32, 40, 56, 88" in output


def test_the_data_decides_the_steps(images_root: Path, tmp_path: Path) -> None:
    own = [f"data.root={images_root}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=4"]
    main([*own, "trainer.max_epochs=3", "model.name=resnet18", "--json", f"{tmp_path}/plan.json"])
    assert json.loads((tmp_path / "plan.json").read_text())["total_steps"] == 3 * (39 // 4)


def test_numbers_of_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match="--loader-rate 0"):
        parse(["--loader-rate", "0"])
