"""Tables, conclusions and files of a tuning."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from imagenet_opt.measure.stats.paired_ratios import Ratio
from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.tune.batch import Batch
from imagenet_opt.tune.coordinate_search import CoordinateSearch
from imagenet_opt.tune.device_turns import Turns
from imagenet_opt.tune.loader import Loader, LoaderSetting
from imagenet_opt.tune.outputs import conclusion, print_tuning, tables_of, write_experiment, write_json
from imagenet_opt.tune.tuner import Tuning


def tuning_of(**results: Any) -> Tuning:
    return Tuning(OmegaConf.create(), None, **results)


@pytest.fixture
def turns() -> Turns:
    return Turns((), 10, Deadline(60), lambda what: None)


def test_json_has_null_for_nan_and_infinity(tmp_path: Path) -> None:
    write_json(tuning_of(seconds=math.inf), [], {"load": math.nan}, 60.0, tmp_path / "tune.json")
    content = json.loads((tmp_path / "tune.json").read_text(), parse_constant=pytest.fail)
    assert (content["load"], content["seconds"]) == (None, None)


def test_each_setting_of_the_loader_is_compared_with_the_start() -> None:
    start, slow, fast, faster, lucky = (LoaderSetting(num, 4, 16) for num in range(5))
    turns = {start: [100.0, 104.0, 98.0], slow: [90.0], fast: [120.0] * 3, faster: [150.0] * 3, lucky: [160.0]}
    ratios = dict.fromkeys((fast, faster), Ratio(1.2, 1.1, 1.3, 0.95))
    climb = CoordinateSearch(faster, turns, {LoaderSetting(9, 4, 16): "no memory"}, ratios, why="budget")
    (table,) = tables_of(tuning_of(loader=Loader(climb, (), None, 1)))
    assert [row[-1] for row in table.rows] == [
        *("as it was", "not 3 % faster in one turn", "faster, surpassed", "faster", "undecided: budget", "no memory")
    ]
    assert table.texts()[0][1:6] == ["100.0", "98.0", "104.0", "1.00", "3"], "minimum and maximum of its turns"
    assert table.texts()[1][1:6] == ["90.0", "-", "-", "0.90", "1"], "one turn has no range"
    climb = CoordinateSearch(start, {start: [100.0, 101.0], fast: [120.0]}, {start: "read error"}, why="nothing more")
    (table,) = tables_of(tuning_of(loader=Loader(climb, (), None, 1)))
    assert [row[-1] for row in table.rows] == ["kept, though once: read error", "undecided"]


def test_the_loader_needs_the_rate_at_the_smallest_images_of_the_run() -> None:
    climb = CoordinateSearch(LoaderSetting(1, 4, 16), {LoaderSetting(1, 4, 16): [100.0]}, why="budget")
    (table,) = tables_of(tuning_of(loader=Loader(climb, (), target=240.0, num_processes=1, smallest=160)))
    assert "the device takes 200 images/s of 160 px, the smallest of the run" in table.notes


def test_a_loader_that_is_fast_enough_is_beside_the_device() -> None:
    climb = CoordinateSearch(LoaderSetting(1, 4, 16), {LoaderSetting(1, 4, 16): [300.0]}, why="enough")
    (table,) = tables_of(tuning_of(loader=Loader(climb, (), target=240.0, num_processes=1)))
    assert "the device is the limit: the loader is 1.5 times as fast, and 1.2 times is enough" in table.notes


def test_each_setting_of_the_device_has_the_range_of_its_turns(turns: Turns) -> None:
    climb = CoordinateSearch("now", {"now": [100.0, 110.0, 90.0], "compiled": [150.0]}, why="budget")
    turns.climbs["ways"] = (climb, {"now": (), "compiled": ("compile=true",)})
    turns.compile_seconds["compile=true",] = 31.0
    (table,) = tables_of(tuning_of(turns=turns))
    assert table.texts() == [
        ["now", "100.0", "90.0", "110.0", "1.00", "3", "-", "as it was"],
        ["compiled", "150.0", "-", "-", "1.50", "1", "31", "undecided: budget"],
    ]


def test_settings_without_a_turn_are_the_conclusion(turns: Turns, capsys: pytest.CaptureFixture[str]) -> None:
    tuning = tuning_of(turns=turns, budget_seconds=45.0)
    formats = CoordinateSearch("now", {"now": [100.0]}, why="budget")
    turns.climbs = {
        "formats": (formats, dict.fromkeys(("now", "a", "b"), ())),
        "ways": (CoordinateSearch("now", why="budget"), dict.fromkeys(("now", "c", "d"), ())),
    }
    assert conclusion(tuning) == [
        "4 of 4 settings of the device were not tried, for lack of time: use --budget 10m; "
        "until then the configured settings stay"
    ]
    assert [table.title for table in tables_of(tuning)] == ["device alone: formats"]
    print_tuning(tuning, [])
    assert capsys.readouterr().out.startswith("nothing was tuned: 45 s is too short; use --budget 10m\n")
    write_experiment(tuning, [], "imagenet-opt tune", ())
    assert capsys.readouterr().err == "no experiment is written, since no setting is certain to be faster\n"
    formats.turns |= {"a": [120.0], "b": [90.0]}
    print_tuning(tuning, [])
    assert "nothing was tuned" not in capsys.readouterr().out
    tuning.overrides, tuning.batch = ("x=1",), Batch(8, notes=["not tried: budget (other batch sizes)"])
    tuning.loader = Loader(CoordinateSearch(LoaderSetting(1, 4, 16), why="budget"), (), None, 1)
    assert conclusion(tuning) == [
        "better here: x=1",
        "2 of 4 settings of the device were not tried, 1 of 4 settings of the device was left undecided, not all batch "
        "sizes were tried, not all settings of the loader were tried, for lack of time: use --budget 10m",
    ]


def test_nothing_is_better_only_if_all_settings_are_decided(turns: Turns) -> None:
    climb = CoordinateSearch("now", {"now": [100.0] * 3, "a": [90.0]}, {"b": "out of memory"}, why="nothing more")
    turns.climbs["formats"] = (climb, dict.fromkeys(("now", "a", "b"), ()))
    tuning = tuning_of(turns=turns, budget_seconds=600.0)
    assert conclusion(tuning) == ["nothing is better here; the configured settings stay"]
    climb.turns |= {"now": [100.0, 120.0, 100.0, 100.0], "a": [140.0, 121.0, 101.0, 101.0]}
    climb.ratios["a"] = Ratio(1.08, 0.9, 1.3, 0.95)
    (sentence,) = conclusion(tuning)
    assert sentence.startswith("undecided after 4 turns, so as configured: formats: a (a study of your own")
