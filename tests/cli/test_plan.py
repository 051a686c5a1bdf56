"""The plan command as a user meets it."""

import json
from pathlib import Path

import pytest

from imagenet_opt.cli.plan import main
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
    (tmp_path / "link").symlink_to(file)
    main(["experiment=rn18_ffcv", "--json", f"{tmp_path}/link"])
    assert (tmp_path / "link").is_symlink() and json.loads(file.read_text())["price"] is None
    with pytest.raises(ConfigError, match=r"--json /dev/full .*: No space left"):
        main(["experiment=rn18_ffcv", "--json", "/dev/full"])


def test_the_data_decides_the_steps_and_a_recipe_of_another_length_has_no_accuracy(
    images_root: Path, tmp_path: Path
) -> None:
    own = [f"data.root={images_root}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=4"]
    main([*own, "experiment=rn18_ffcv", "trainer.max_epochs=3", "--json", f"{tmp_path}/plan.json"])
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["total_steps"], plan["published_top1"]) == (3 * (39 // 4), None)


def test_a_budget_ranks_the_lengths_of_a_recipe_as_their_plans_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, price = tmp_path / "plan.json", ["--price-per-hour", "0.5"]
    main(["experiment=rn18_ffcv", "--budget", "2", *price, "--json", str(file)])
    output, ranked = " ".join(capsys.readouterr().out.split()), json.loads(file.read_text())["recipes"]
    assert [each["published_top1"] for each in ranked] == [72.4, 71.3, 70.6, 70.0, 68.8, 66.9]
    main(["experiment=rn18_ffcv", "trainer.max_epochs=32", *price, "--json", str(file)])
    best, plan = ranked[3], json.loads(file.read_text())
    assert (best["words"], best["price"]) == ("experiment=rn18_ffcv trainer.max_epochs=32", plan["price"])
    assert f"{best['words']}, 70.0 %" in output and f"${2 - plan['price']:.2f} are left" in output
    assert "72.40" not in output and "none" in output.partition("Reproduced here:")[2][:6]


@pytest.mark.slow
def test_a_budget_ranks_all_recipes_that_train_a_whole_network(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    main(["--budget", "25", "--price-per-hour", "0.5", "--rate", "900", "--json", str(file)])
    ranked = json.loads(file.read_text())["recipes"]
    assert len(ranked) == 18 and ranked[0]["published_top1"] == 80.858
    (classic,) = [each for each in ranked if each["words"] == "experiment=rn50_classic90"]
    training = 90 * 1_281_167 / 900
    assert classic["hours"] * 3600 == pytest.approx(training + 90 * 50_000 / 900 / 3, rel=0.01)
