"""The tables and the JSON file of a benchmark."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from imagenet_opt.bench.job import CEILING, OWN, REGION, WORKER
from imagenet_opt.bench.peers import PEERS
from imagenet_opt.bench.report import Report, as_json, method, print_report
from imagenet_opt.bench.turn import Turn
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.data.index.folder_index import FileIndex
from tests.bench.conftest import plan_of

RATES = {
    WORKER: [100.0, 50.0, 200.0, 110.0, 90.0, 100.0],
    REGION: [180.0, 90.0, 360.0, 180.0, 180.0, 180.0],
    CEILING: [200.0, 100.0, 400.0, 200.0, 200.0, 200.0],
    "torchvision": [50.0, 25.0, 100.0, 55.0, 45.0, 50.0],
    "timm": [100.0, 51.0, 190.0, 111.0, 90.0, 99.0],
    "spdl": [70.0],
}


@pytest.fixture
def report(index: FileIndex) -> Report:
    """Six rounds, in which the machine was slow once and fast once; one peer that failed in its second."""
    stages = {"loader/read_seconds": 0.01, "loader/decode_seconds": 0.04, "num_workers": 1.0, "loader/mb_read": 2.5}
    turns = {
        name: [Turn(600, 600 / rate, 0.5, stages if name in OWN else {}, cpu_seconds=60 / rate) for rate in rates]
        for name, rates in RATES.items()
    }
    plan = replace(
        plan_of(index, against=("torchvision", "timm")),
        sides=tuple(RATES),
        absent={name: f"not installed: {PEERS[name].install}" for name in ("dali", "ffcv")},
    )
    rounds = Rounds(turns, {"spdl": "RuntimeError: out of threads"}, seconds=60.0)
    facts = {"cpu": "a CPU", "usable_cpus": 2, "memory_gib": 8.0, "gpu": None, "busy_percent_before": 35.0}
    return Report(plan, rounds, facts, "files in memory")


def test_ratios_are_of_geometric_means_with_intervals(report: Report) -> None:
    ratios = {(ratio["of"], ratio["to"]): ratio for ratio in as_json(report, ["imagenet-opt", "bench"])["ratios"]}
    assert len(ratios) == 5
    for (of, to), ratio in ratios.items():
        each = np.array(RATES[of]) / np.array(RATES[to])
        assert ratio["ratio"] == pytest.approx(np.exp(np.log(each).mean()))
        low, high = ratio["interval"]
        assert low * high == pytest.approx(ratio["ratio"] ** 2), "the same factor to both sides"
        assert ratio["coverage"] == 0.95
    assert ratios[WORKER, "torchvision"]["interval"] == pytest.approx([2.0, 2.0]), "a pair that does not scatter"
    assert ratios[WORKER, "torchvision"]["verdict"] == "faster"
    assert ratios[WORKER, "timm"]["verdict"] == "undecided"
    assert ratios[REGION, CEILING]["ratio"] == pytest.approx(0.9)


def test_json_has_every_row_measured_or_not(report: Report) -> None:
    rows = {row["name"]: row for row in as_json(report, ["imagenet-opt", "bench"])["rows"]}
    assert list(rows) == [WORKER, REGION, CEILING, "torchvision", "timm", "dali", "ffcv", "spdl"]
    assert rows["spdl"]["failure"] == "RuntimeError: out of threads"
    assert rows["ffcv"]["failure"].startswith("not installed: apt install")
    assert rows["ffcv"]["images_per_second"] is rows["spdl"]["images_per_second"] is None
    assert rows[WORKER]["rounds"] == pytest.approx(RATES[WORKER]) and rows[WORKER]["images_per_second"] == 100
    assert rows[WORKER]["cpu_ms_per_image"] == pytest.approx([100 / rate for rate in RATES[WORKER]])
    assert rows[WORKER]["stages"]["other_seconds"] == pytest.approx(6 / 100 - 0.01 - 0.04)
    json.dumps(list(rows.values()), allow_nan=False)


def test_overlapping_stages_leave_no_negative_time(report: Report) -> None:
    overlapping = {"loader/read_seconds": 0.05, "loader/decode_seconds": 0.04, "num_workers": 1.0}
    report.rounds.results[WORKER] = [Turn(600, 6.0, 0.5, overlapping)]
    assert report.stages(WORKER)["other_seconds"] == 0.0
    assert "medians with 95 % intervals from order statistics" in method(report)


def test_the_tables_have_every_row_measured_or_not(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    text = " ".join(lines)
    for words in (
        "worker resize 100 50 to 200 (97 %) 1.00 0.5 s uint8 images of 32 x 32, resized by the workers",
        "worker resize / timm 1.01 0.97-1.05 undecided, about 50 s more",
        "worker resize / torchvision 2.00 2.00-2.00 faster",
        "region decode / nvImageCodec alone 0.90 0.90-0.90 slower",
        "waits for bytes, ms 10 10",
        "encoded bytes, MB 2.5 2.5",
        "To decide what is undecided, raise --repeats.",
    ):
        assert words in lines
    assert 'dali - not installed: pip install "imagenet-opt[bench]"' in text
    assert "spdl - RuntimeError: out of threads" in text and "ffcv - not installed: apt install" in text
    assert "a CPU, 2 usable CPUs, 8 GiB, no GPU; 35 % busy before the run" in text
    assert "39 files, mean" in text and f"python {sys.version.split()[0]}" in text
