"""What more processes bring, against efficiencies calculated by hand, and once for real."""

import os
from pathlib import Path

import pytest

from imagenet_opt.cli.apart import call_apart
from imagenet_opt.cli.overrides import config_folder
from imagenet_opt.cli.study_request import Request, checked_options, read_study
from imagenet_opt.cli.study_scaling import Scaling, sheet
from imagenet_opt.cli.study_scaling_turn import Job, Pace
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.interleave import Rounds


def request(**options: object) -> Request:
    return Request("scaling", "a title", "scaling", options, (), 2, 1.0, 0, None, Path("runs"))


def test_the_shipped_study_is_one() -> None:
    name, study = read_study("scaling", config_folder() / "study")
    assert (name, study.kind) == ("scaling", "scaling")
    assert checked_options(Scaling, request(**(study.model_extra or {}))).processes == [1, 2, 4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"processes": [2, 4]}, "study=scaling: processes: .* must hold 1"),
        ({"processes": [1, 2, 2]}, "each number once"),
        ({"processes": [0, 1]}, "greater than 0"),
        ({"processes": [1], "devices": 2}, "study=scaling: devices"),
    ],
)
def test_mistakes_name_the_key(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        checked_options(Scaling, request(**options))


def test_efficiency_is_of_each_round_and_what_was_not_measured_says_why() -> None:
    """The machine was three times as fast in one round: the efficiency does not see it."""
    alone, two = (100.0, 300.0, 100.0, 110.0, 90.0, 100.0), (180.0, 540.0, 170.0, 198.0, 162.0, 190.0)
    results = {"1": [Pace(rate, 6 / rate) for rate in alone], "2": [Pace(rate, 12 / rate) for rate in two], "4": []}
    rounds = Rounds(results, {"4": "OutOfMemory: x"})
    found = sheet([1, 2, 4, 8], rounds, {8: "left out: 4 GPUs here"}, num_cpus=None)
    first, second, third, fourth = found.rows
    assert first[:7] == (1, 100.0, 90.0, 300.0, 1.0, 1.0, 1.0)
    assert second[0] == 2 and second[4:7] == pytest.approx((0.9, 0.85, 0.95))
    assert second[7] == pytest.approx(1000 * (12 / 180 + 12 / 190) / 2)
    assert third[1:] == (*[None] * 7, "failed: OutOfMemory: x") and fourth[-1] == "left out: 4 GPUs here"
    rates, shares = found.plots
    assert rates.series[0].x == (1, 2) and rates.series[1].y == (100.0, 200.0)
    assert shares.series[0].y == pytest.approx((1.0, 0.9))
    assert found.texts()[1][4:7] == ["90.0%", "85.0%", "95.0%"]


def test_processes_that_share_the_cpus_are_told() -> None:
    rounds = Rounds({name: [Pace(10.0, 0.6), Pace(12.0, 0.5)] for name in "124"})
    found = sheet([1, 2, 4], rounds, {}, num_cpus=2)
    assert [row[-1] for row in found.rows] == ["", "", "more processes than CPUs (2)"]
    assert [row[4] for row in found.rows] == [1.0, 0.5, 0.25]
    assert "share" not in found.notes[0] and "share 2 CPUs" in found.notes[-1]


def test_without_one_process_nothing_is_compared() -> None:
    rounds = Rounds({"1": [], "2": [Pace(10.0, 0.6)]}, {"1": "ValueError: x"})
    found = sheet([1, 2], rounds, {}, num_cpus=None)
    assert found.rows[1][1] == 10.0 and found.rows[1][4] is None and found.plots == ()


@pytest.mark.slow
def test_two_processes_train_and_the_first_one_answers(images_root: Path, tmp_path: Path) -> None:
    tiny = ("model.name=test_resnet", "data.image_size=32", "data.batch_size=6", "data.num_workers=0")
    job = Job((f"data.root={images_root}", *tiny, "trainer.precision=32-true"), 2, 0.1, on_gpu=False)
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        found = call_apart("imagenet_opt.cli.study_scaling_turn.train", job, environment=own, limit_seconds=120)
    finally:
        os.chdir(before)
    assert found["images_per_second"] * found["step_seconds"] == pytest.approx(2 * 6)
    assert [file.name for file in tmp_path.iterdir() if file.name != "cache"] == []
