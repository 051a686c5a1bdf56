"""The tables and the JSON file of a benchmark."""

import json
from pathlib import Path

from imagenet_opt.bench.benchmark import job_of
from imagenet_opt.bench.report import as_json, tables_of
from imagenet_opt.bench.turn import CEILING, OWN, REGION, WORKER, Job, Turn
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.data.index.open_index import open_index
from tests.conftest import loading

RATES = {
    WORKER: [100.0, 50.0, 200.0, 110.0, 90.0, 100.0],
    REGION: [180.0, 90.0, 360.0, 180.0, 180.0, 180.0],
    CEILING: [200.0, 100.0, 400.0, 200.0, 200.0, 200.0],
    "torchvision": [50.0, 25.0, 100.0, 55.0, 45.0, 50.0],
    "timm": [100.0, 51.0, 190.0, 111.0, 90.0, 99.0],
    "spdl": [70.0],
}


def measured(folder: Path) -> tuple[Rounds[Turn], Job, list[str]]:
    """Six rounds, in which the machine was slow once and fast once; one peer that failed in its second round, and one
    that is not installed."""
    stages = {"loader/read_seconds": 0.01, "loader/decode_seconds": 0.04, "loader/mb_read": 2.5}
    turns = {
        name: [Turn(600, 600 / rate, 60 / rate, stages if name in OWN else {}) for rate in rates]
        for name, rates in RATES.items()
    }
    rounds = Rounds(turns, {"spdl": "RuntimeError: out of threads", "ffcv": "not installed"}, seconds=60.0)
    return rounds, job_of(open_index(folder, "train", folder), loading(num_workers=1), 4), [*RATES, "ffcv"]


def test_the_tables_have_every_row_measured_or_not(images_root: Path) -> None:
    rounds, job, rows = measured(images_root)
    rates, _, ratios = tables_of(rounds, job, rows)
    shown = {row[0]: row[1:] for row in rates.texts()}
    assert list(shown) == rows
    assert shown[WORKER][:3] == ["100", "50-200", "1.00"]
    assert shown["spdl"] == ["-", "-", "-", "RuntimeError: out of threads"] and shown["ffcv"][-1] == "not installed"
    assert "beside timm, the fastest other loader: 1.01 x" in rates.finding
    compared = {row[0]: row[1:] for row in ratios.texts()}
    assert compared[f"{WORKER} / torchvision"] == ["2.00", "2.00-2.00", "faster"], "a pair that does not scatter"
    assert compared[f"{REGION} / {CEILING}"] == ["0.90", "0.90-0.90", "slower"]
    assert compared[f"{WORKER} / timm"][2].startswith("undecided") and "--repeats" in ratios.notes[0]
    content = json.loads(json.dumps(as_json(rounds, job, [rates], {"command": "bench"}), allow_nan=False))
    assert content["turns"]["spdl"][0]["num_images"] == 600 and content["failures"]["ffcv"] == "not installed"
