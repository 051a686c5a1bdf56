"""Tables and notes of a study of steps."""

from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_opt.compare.gain import Gain
from imagenet_opt.compare.rounds import Rounds
from imagenet_opt.display.table import Table
from imagenet_opt.measure.stats.verdict import Ratio
from imagenet_opt.study.losses import Parities, Parity
from imagenet_opt.study.plan import Plan, StepsFile, Study
from imagenet_opt.study.steps import advice, tables
from imagenet_opt.study.turn import RowResult, Turn, Worths, results_of
from tests.study.studies import small_request, speed


class Measured:
    """A study of four steps in four rounds; "fast" and "slow" change the network alone."""

    def __init__(self) -> None:
        names = ("fast", "lossy", "slow", "broken")
        steps = [{"name": name, "overrides": [f"model.drop_rate={name}"]} for name in names]
        steps += [{"name": "graph", "overrides": ["a=b"], "needs": "gpu"}]
        file = StepsFile.model_validate({"order": "alone", "steps": steps})
        self.plan = Plan(file, (), batch_size=64, has_gpu=False, mixed="32-true")
        request = replace(small_request("ladder", Path()), repeats=4, parity_steps=10)
        self.study = Study(self.plan, request, self.plan.rows(), cold=True)
        rounds = [1.0, 0.7, 1.05, 0.9]  # speed of the machine in each round
        wobble = [1.0, 1.01, 0.99, 1.0]
        turns: dict[str, list[Turn]] = {"broken": []}
        for name, times in {"start": 1.0, "fast": 1.5, "lossy": 1.4, "slow": 0.6}.items():
            mixed = zip(rounds, wobble if name == "fast" else wobble[::-1], strict=True)
            turns[name] = [speed(1000 * times * mood * noise, 100 * mood) for mood, noise in mixed]
        self.rounds = Rounds(turns, {"broken": "in round 1: out of memory"})
        self.parities: Parities = {"fast": Parity(0.1, 0.2), "lossy": Parity(0.3, 0.2), "slow": Parity(0.1, 0.2)}

    def results(self) -> dict[str, RowResult]:
        results = results_of(self.study.rows, self.rounds, is_ladder=False)
        return {result.row.name: result for result in results}

    def tables(self) -> list[Table]:
        return tables(self.study, list(self.results().values()), self.parities)


@pytest.fixture
def measured() -> Measured:
    return Measured()


def test_the_tables_have_ratios_verdicts_and_details(measured: Measured) -> None:
    alone, full, details = measured.tables()
    rows = {row[0]: row[1:] for row in alone.texts()}
    assert rows["start"] == ["950", "-", "-", "-"]
    assert rows["fast"][:2] == ["950 -> 1,425", "1.50 x"] and rows["fast"][2].startswith("1.4")
    assert rows["fast"][3] == "faster" and rows["slow"][1] == "0.60 x" and rows["slow"][3] == "slower"
    assert {row[0]: row[1:] for row in full.texts()}["fast"] == ["95 -> 95", "1.00 x", "1.00-1.00", "no difference"]
    assert rows["broken"][0] == "failed" and "broken failed in round 1: out of memory." in details.notes
    assert "graph" not in rows and details.left_out == ("Left out, as there is no GPU here: graph.",)
    headings = [column.heading for column in details.columns]
    rows = {row[0]: row for row in details.texts()}
    assert rows["start"][headings.index("pipeline / alone")] == "10%"
    assert rows["lossy"][headings.index("loss")] == "DIFFERS: 0.300, seeds 0.200"
    assert [rows[name][1] for name in ("start", "fast")] == ["-", "start"]


def test_the_advice_for_what_is_undecided_lasts_for_the_longest_comparison(measured: Measured) -> None:
    open_ratio, shut = Ratio(1.02, 0.97, 1.07, 0.95, 40, 0.05), Ratio(1.5, 1.4, 1.6, 0.95, 4, 0.05)
    one = measured.results()["fast"]
    results = [replace(one, worth=Worths(full=Gain(100, 102, open_ratio, seconds))) for seconds in (1.0, 10.0)]
    results += [replace(one, worth=Worths(full=Gain(100, 150, shut, 1e6)))]
    # an interval of +- 4.9 % around 2.0 % must be 2.5 times narrower: 6 times the rounds, as Student's quantile is flat
    request = small_request("ladder", Path())
    assert "--budget 33m" in advice(results, replace(request, repeats=None))[0]
    assert "raise --repeats" in advice(results, request)[0]
    assert advice(results[2:], request) == []


def test_the_first_table_has_all_measurements_as_numbers(measured: Measured) -> None:
    data = measured.tables()[0].data
    rows = {row["name"]: row for row in data["rows"]}
    assert data["cold"] is True and data["left_out"] == {"graph": "there is no GPU here"}
    fast = rows["fast"]
    assert fast["overrides"] == ["model.drop_rate=fast"] and fast["compared_with"] == "start"
    assert [turn["full"] for turn in fast["turns"]] == pytest.approx([100, 70, 105, 90])
    assert 1.4 < fast["ratios"]["compute"]["low"] < fast["ratios"]["compute"]["ratio"] < 1.6
    assert fast["ratios"]["full"]["verdict"] == "no difference"
    assert fast["parity"] == {"distance": 0.1, "spread": 0.2} and rows["start"]["ratios"] == {}
    assert (rows["broken"]["failure"], rows["broken"]["turns"]) == ("in round 1: out of memory", [])
