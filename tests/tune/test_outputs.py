"""Tables, conclusions and files of a tuning."""

import json
import math
from pathlib import Path

import pytest

from imagenet_opt.tune.climb import OPEN, Climb, Found
from imagenet_opt.tune.loader import LoaderSetting, axes, why_stopped
from imagenet_opt.tune.outputs import conclusion, print_tuning, tables_of, write_experiment, write_json
from imagenet_opt.tune.tuner import Tuning


def test_json_has_null_for_nan_and_infinity(tmp_path: Path) -> None:
    write_json(Tuning(seconds=math.inf), [], {"load": math.nan}, tmp_path / "tune.json")
    content = json.loads((tmp_path / "tune.json").read_text(), parse_constant=pytest.fail)
    assert (content["load"], content["seconds"]) == (None, None)


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (("auto", "auto", "auto"), ([], [6, 4, 2], [8], [2, 1], [64, 256])),
        ((2, 4, 16), ([8], [1], [8], [2, 1], ["auto", 64, 256])),
        ((32, 1, 64), ([], [6, 4, 2], [2], [], ["auto", 256])),
        ((0, 2, 64), ([8], [], [4], [1], ["auto", 256])),
    ],
)
def test_more_and_fewer_than_the_configured_numbers_are_tried(best: tuple[object, ...], tried: tuple[object]) -> None:
    keys = ("num_workers", "num_workers", "prefetch_factor", "prefetch_factor", "reads_in_flight")
    settings = [axis(LoaderSetting(*best)) for axis in axes(cpus=8)]
    assert tuple([getattr(one, key) for one in axis] for key, axis in zip(keys, settings, strict=True)) == tried


def test_a_loader_that_is_fast_enough_is_beside_the_device() -> None:
    start = LoaderSetting(1, 4, 16)
    climbed = Climb(start, {str(start): [300.0]}, why="enough")
    assert why_stopped(climbed, 200.0).startswith("the device is the limit: the loader is 1.5 times as fast")


def test_settings_without_a_turn_are_the_conclusion(capsys: pytest.CaptureFixture[str]) -> None:
    formats = Climb("now", {"now": [100.0]}, {"now": "as it was"}, ("now", "a", "b"), why="budget")
    tuning = Tuning(budget_seconds=45.0)
    tuning.device_climbs = {"formats": formats, "ways": Climb("now", names=("now", "c", "d"), why="budget")}
    assert conclusion(tuning) == [
        "4 of 4 settings of the device were not tried, for lack of time: use --budget 10m; "
        "until then the configured settings stay"
    ]
    assert [table.title for table in tables_of(tuning)] == ["device alone: formats"]
    print_tuning(tuning, [])
    assert capsys.readouterr().out.startswith("nothing was tuned: 45 s is too short; use --budget 10m\n")
    write_experiment(tuning, [], "imagenet-opt tune", ())
    assert capsys.readouterr().err == "no experiment is written, since no setting is certain to be faster\n"
    formats.outcomes |= {"a": OPEN, "b": "not 3 % faster in one turn"}
    tuning.overrides, tuning.parts = ("x=1",), [Found(lacks_time="not all batch sizes were tried")]
    assert conclusion(tuning) == [
        "better here: x=1",
        "2 of 4 settings of the device were not tried, 1 of 4 settings of the device was left undecided, not all batch "
        "sizes were tried, for lack of time: use --budget 10m",
    ]


def test_nothing_is_better_only_if_all_settings_are_decided() -> None:
    outcomes = {"now": "as it was", "a": "not 3 % faster in one turn", "b": "out of memory"}
    climbed = Climb("now", {"now": [100.0] * 3, "a": [90.0]}, outcomes, tuple(outcomes), why="nothing more")
    tuning = Tuning(device_climbs={"formats": climbed}, budget_seconds=600.0)
    assert conclusion(tuning) == ["nothing is better here; the configured settings stay"]
    climbed.outcomes["a"] = "undecided, about 2 min more"
    (sentence,) = conclusion(tuning)
    assert sentence.startswith("undecided after 4 rounds, so as configured: formats: a (a study of your own")
