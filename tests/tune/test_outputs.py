"""What a tuning says of what it measured."""

import json
import math
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from imagenet_opt.measure.stats.rounds import Deadline
from imagenet_opt.tune.batch import Batch
from imagenet_opt.tune.coordinate_search import CoordinateSearch
from imagenet_opt.tune.device_turns import Turns
from imagenet_opt.tune.loader import Loader, LoaderSetting
from imagenet_opt.tune.outputs import (
    _device_table,
    _loader_table,
    conclusion,
    print_tuning,
    write_experiment,
    write_json,
)
from imagenet_opt.tune.tuner import Tuning


def test_json_has_a_word_for_what_is_no_number(tmp_path: Path) -> None:
    found = Tuning(OmegaConf.create(), None, seconds=math.inf)
    write_json(found, [], {"load": math.nan}, 60.0, tmp_path / "tune.json")
    plain = json.loads((tmp_path / "tune.json").read_text(), parse_constant=pytest.fail)
    assert (plain["load"], plain["seconds"]) == (None, None)


def test_each_setting_of_the_loader_is_compared_with_the_start() -> None:
    start, slow, fast, faster, lucky = (LoaderSetting(num, 4, 16) for num in range(5))
    turns = {start: [100.0, 104.0, 98.0], slow: [90.0], fast: [120.0] * 3, faster: [150.0] * 3, lucky: [160.0]}
    verdicts = {fast: "faster", faster: "faster"}
    found = CoordinateSearch(faster, turns, {LoaderSetting(9, 4, 16): "no memory"}, verdicts, "budget")
    table = _loader_table(Loader(found, (), None, 1), "")
    assert [row[-1] for row in table.rows] == [
        *("as it was", "not 3 % faster", "faster, surpassed", "faster", "undecided: budget", "no memory")
    ]
    assert table.texts()[0][1:6] == ["100.0", "98.0", "104.0", "1.00", "3"], "from the least to the most of its turns"
    assert table.texts()[1][1:6] == ["90.0", "-", "-", "0.90", "1"], "one turn has no span"
    found = CoordinateSearch(start, {start: [100.0, 101.0], fast: [120.0]}, {start: "read error"}, why="nothing more")
    said = [row[-1] for row in _loader_table(Loader(found, (), None, 1), "").rows]
    assert said == ["kept, though once: read error", "undecided"]


def test_the_smallest_images_of_the_run_decide_what_the_loader_must_reach() -> None:
    found = CoordinateSearch(LoaderSetting(1, 4, 16), {LoaderSetting(1, 4, 16): [100.0]}, why="budget")
    assert (
        "the device takes 200 images/s of 160 px, the smallest of the run"
        in _loader_table(Loader(found, (), target=240.0, num_processes=1, smallest=160), "").notes
    )


def test_a_setting_of_the_device_reaches_from_its_least_to_its_most_turn() -> None:
    turns = Turns((), 10, Deadline(60), lambda what: None)
    climbed = CoordinateSearch("now", {"now": [100.0, 110.0, 90.0], "compiled": [150.0]}, why="budget")
    turns.climbs["ways"] = (climbed, {"now": (), "compiled": ("compile=true",)})
    turns.compile_seconds["compile=true",] = 31.0
    assert _device_table("ways", turns).texts() == [
        ["now", "100.0", "90.0", "110.0", "1.00", "3", "-", "as it was"],
        ["compiled", "150.0", "-", "-", "1.50", "1", "31", "undecided: budget"],
    ]


def test_what_there_was_no_time_for_is_the_conclusion(capsys: pytest.CaptureFixture[str]) -> None:
    """That nothing is better is said only where everything was seen."""
    turns = Turns((), 10, Deadline(60), lambda what: None)
    found = Tuning(OmegaConf.create(), None, turns=turns, budget_seconds=45.0)
    formats = CoordinateSearch("now", {"now": [100.0]}, why="budget")
    named = {name: () for name in ("now", "a", "b")}
    turns.climbs = {
        "formats": (formats, named),
        "ways": (CoordinateSearch("now", why="budget"), dict.fromkeys(("now", "c", "d"), ())),
    }
    assert conclusion(found) == [
        "4 of 4 settings of the device were not tried, for lack of time: raise --budget (45s); "
        "until then the configured settings stay"
    ]
    print_tuning(found, [])
    assert capsys.readouterr().out.startswith("nothing was tuned: 45 s is too short; use --budget 10m\n")
    write_experiment(found, [], "imagenet-opt tune", ())
    assert capsys.readouterr().err == "no experiment is written\n"
    formats.turns |= {"a": [120.0], "b": [90.0]}
    print_tuning(found, [])
    assert "nothing was tuned" not in capsys.readouterr().out
    found.overrides, found.batch = ("x=1",), Batch(8, notes=["not tried: budget: other batch sizes"])
    found.loader = Loader(CoordinateSearch(LoaderSetting(1, 4, 16), why="budget"), (), None, 1)
    assert conclusion(found) == [
        "better here: x=1",
        "2 of 4 settings of the device were not tried, 1 of 4 settings of the device was left undecided, not all batch "
        "sizes were tried, not all settings of the loader were tried, for lack of time: raise --budget (45s)",
    ]


def test_where_all_was_seen_nothing_is_better() -> None:
    turns = Turns((), 10, Deadline(60), lambda what: None)
    climbed = CoordinateSearch("now", {"now": [100.0] * 3, "a": [90.0]}, {"b": "out of memory"}, why="nothing more")
    turns.climbs["formats"] = (climbed, dict.fromkeys(("now", "a", "b"), ()))
    found = Tuning(OmegaConf.create(), None, turns=turns, budget_seconds=600.0)
    assert conclusion(found) == ["nothing is better here; the configured settings stay"]
    climbed.turns |= {"now": [100.0, 120.0, 100.0, 100.0], "a": [140.0, 121.0, 101.0, 101.0]}
    climbed.verdicts["a"] = "undecided"
    assert "1 of 2 settings of the device was left undecided" in conclusion(found)[0]
