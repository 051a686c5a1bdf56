"""Tables and notes of a study of steps."""

import io
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console

from imagenet_opt.compare.gain import Gain
from imagenet_opt.compare.turn import Turn
from imagenet_opt.display.page import figure_of
from imagenet_opt.display.table import Plot, Series, Table
from imagenet_opt.display.terminal_table import terminal_table
from imagenet_opt.measure.stats.paired_ratios import Ratio
from imagenet_opt.study.apply import why_not
from imagenet_opt.study.compare import RowResult, compare
from imagenet_opt.study.losses import Losses, Parity
from imagenet_opt.study.notes import advice
from imagenet_opt.study.plan import Plan, StepsFile, Study
from imagenet_opt.study.speeds import gaps
from imagenet_opt.study.table import tables
from tests.study.studies import small_request
from tests.study.turns import speed


@dataclass
class Measured:
    study: Study
    turns: dict[str, list[Turn]]
    losses: Losses

    def results(self) -> dict[str, RowResult]:
        failures = {"broken": "out of memory"}
        return {result.row.name: result for result in compare(self.study.rows, self.turns, failures, self.losses)}

    def on_gpu(self) -> None:
        self.study.plan.has_gpu = True

    def tables(self) -> list[Table]:
        return tables(self.study, list(self.results().values()))


@pytest.fixture
def measured() -> Measured:
    steps = [{"name": name, "overrides": [f"model.drop_rate={name}"]} for name in ("fast", "lossy", "slow", "broken")]
    steps += [{"name": "graph", "overrides": ["a=b"], "needs": "gpu"}]
    file = StepsFile.model_validate({"order": "alone", "steps": steps})
    request = replace(small_request("ladder", Path()), repeats=4, parity_steps=10, price_per_hour=2.0)
    plan = Plan(file, (), batch_size=64, has_gpu=False, mixed="32-true")
    turns: dict[str, list[Turn]] = {}
    rounds = [1.0, 0.7, 1.05, 0.9]  # speed of the machine in each round
    wobble = [1.0, 1.01, 0.99, 1.0]
    for name, times in {"start": 1.0, "fast": 1.5, "lossy": 1.4, "slow": 0.6}.items():
        mixed = zip(rounds, wobble if name == "fast" else wobble[::-1], strict=True)
        turns[name] = [speed(1000 * times * mood * noise, 100 * mood) for mood, noise in mixed]
    losses = Losses({"start": {0: [6.9, 6.5], 1: [6.9, 6.4]}, "fast": {0: [6.9, 6.6]}})
    losses.parities = {"fast": Parity(0.1, 0.2), "lossy": Parity(0.3, 0.2), "slow": Parity(0.1, 0.2)}
    return Measured(Study(plan, request, plan.rows(), cold=True), turns, losses)


def test_the_tables_have_ratios_verdicts_and_details(measured: Measured) -> None:
    alone, full, details, _ = measured.tables()
    rows = {row[0]: row[1:] for row in alone.texts()}
    assert rows["start"] == ["950", "-", "-", "-"]
    assert rows["fast"][:2] == ["950 -> 1,425", "1.50 x"] and rows["fast"][2].startswith("1.4")
    assert rows["fast"][3] == "faster" and rows["slow"][1] == "0.60 x" and rows["slow"][3] == "slower"
    assert {row[0]: row[1:] for row in full.texts()}["fast"] == ["95 -> 95", "1.00 x", "1.00-1.00", "no difference"]
    assert rows["broken"][0] == "failed" and "broken failed: out of memory." in details.notes
    assert "graph" not in rows and details.left_out == ("Left out, as there is no GPU here: graph.",)
    headings = [column.heading for column in details.columns]
    rows = {row[0]: row for row in details.texts()}
    assert rows["start"][headings.index("pipeline / alone")] == "10%"
    assert rows["start"][headings.index("M images per $")] == "0.2"  # 95 a second, 3600 seconds, 2 $
    assert rows["lossy"][headings.index("loss")] == "DIFFERS: 0.300, seeds 0.200"
    assert any("Ratios are ratios of geometric means over the rounds" in note for note in details.notes)


def test_a_row_fits_into_one_line_of_80_columns(measured: Measured) -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(*(terminal_table(table, 80) for table in measured.tables()[:2]))
    assert sum(line.split()[:1] == ["fast"] for line in out.getvalue().splitlines()) == 2


def test_the_plot_marks_undecided_ratios(measured: Measured) -> None:
    figure = figure_of(measured.tables()[0].plots[0])
    (marks,) = figure.data
    assert list(marks.y) == ["fast", "lossy", "slow"] and marks.x[0] == pytest.approx(1.5, rel=0.01)
    assert set(marks.marker.symbol) == {"circle"} and figure.layout.shapes[0].x1 == pytest.approx(1.03)
    doubtful = Plot("", "", "", "ratios", (Series("", ("a", "b"), (1.1, 1.2), (0.0, 1.1), (float("inf"), 1.3)),))
    (marks,) = figure_of(doubtful).data
    assert list(marks.marker.symbol) == ["circle-open", "circle"]
    assert marks.error_x.array[0] == pytest.approx(98.9) and marks.error_x.arrayminus[0] == pytest.approx(1.09)


def bottleneck(measured: Measured) -> list[str]:
    return [note for note in measured.tables()[2].notes if note.startswith("With fast the network alone does 1,42")]


def test_a_slow_pipeline_is_a_bottleneck_only_if_the_device_waits(measured: Measured) -> None:
    (note,) = bottleneck(measured)
    assert "loader and network share the cores" in note and "gains nothing" not in note
    measured.on_gpu()
    assert "gains nothing" in bottleneck(measured)[0], "also if no kernel was observed"
    on_gpu = [replace(turn, kernel_seconds=0.01) for turn in measured.turns["fast"]]
    measured.turns["fast"] = on_gpu
    (note,) = bottleneck(measured)
    assert "behind that bottleneck, a faster network gains nothing" in note and "doctor" in note
    measured.turns["fast"] = [replace(turn, kernel_seconds=0.63) for turn in on_gpu]  # of 0.67 s a step in the pipeline
    assert not bottleneck(measured)


def test_the_gaps_between_kernels_are_noted_on_a_gpu(measured: Measured) -> None:
    assert gaps("start", measured.turns["start"], has_gpu=False) is None
    hidden = gaps("start", measured.turns["start"], has_gpu=True)
    assert str(hidden).startswith("start: kernel times could not be seen: CUPTI needs permission: start the")
    measured.on_gpu()
    measured.turns["start"] = [speed(640, 100, kernel_seconds=0.099)] * 4
    assert any("with a CUDA graph or compile, gives at most" in note for note in measured.tables()[2].notes)


def test_a_queue_that_was_not_used_up_is_noted(measured: Measured) -> None:
    assert measured.tables()[1].notes == ()
    measured.turns["slow"][2] = replace(measured.turns["slow"][2], is_steady=False)
    (note,) = measured.tables()[1].notes
    assert note.startswith("Raise --seconds: in slow batches that were ready before the timing were left at its end")


def test_the_advice_for_what_is_undecided_lasts_for_the_longest_comparison() -> None:
    open_ratio, shut = Ratio(1.02, 0.97, 1.07, 0.95, 40, 0.05), Ratio(1.5, 1.4, 1.6, 0.95, 4, 0.05)
    worths = [Gain(100, 102, open_ratio, seconds) for seconds in (1.0, 10.0)] + [Gain(100, 150, shut, 1e6)]
    # an interval of +- 4.9 % around 2.0 % must be 2.5 times narrower: 6 times the rounds, as Student's quantile is flat
    request = small_request("ladder", Path())
    (sentence,) = advice(worths, replace(request, repeats=None))
    assert sentence.endswith("run the command again with --budget 33m; it resumes.")
    assert advice(worths, replace(request, repeats=40)) == [
        "To decide all that is undecided, raise --repeats, probably to 234."
    ]
    assert advice(worths[2:], request) == []


def test_the_first_table_has_all_measurements_as_numbers(measured: Measured) -> None:
    table, *_ = measured.tables()
    rows = {row["name"]: row for row in table.data["rows"]}
    assert list(rows) == ["start", "fast", "lossy", "slow", "broken", "graph"] and table.data["cold"] is True
    fast = rows["fast"]
    assert fast["overrides"] == ["model.drop_rate=fast"] and fast["compared_with"] == "start"
    assert [turn["full"] for turn in fast["turns"]] == pytest.approx([100, 70, 105, 90])
    assert fast["ratios"]["compute"]["ratio"] == pytest.approx(1.5, rel=0.01)
    assert 1.4 < fast["ratios"]["compute"]["low"] < 1.5 < fast["ratios"]["compute"]["high"] < 1.6
    assert fast["ratios"]["full"]["verdict"] == "no difference"
    assert fast["losses"] == {0: [6.9, 6.6]} and fast["parity"] == {"distance": 0.1, "spread": 0.2, "agrees": True}
    assert rows["start"]["ratios"] == {} and rows["start"]["losses"][1] == [6.9, 6.4]
    assert (rows["broken"]["failure"], rows["broken"]["turns"]) == ("out of memory", [])
    assert rows["graph"] == {"name": "graph", "overrides": ["a=b"], "failure": "left out: there is no GPU here"}


def test_the_last_table_has_the_overrides_of_each_row(measured: Measured) -> None:
    rows = measured.tables()[3].texts()
    assert rows[:2] == [["start", "none", "-"], ["fast", "model.drop_rate=fast", "start"]]
    assert rows[-1] == ["graph", "a=b", "-"]


def test_a_step_is_kept_if_it_is_faster_and_has_the_same_loss(measured: Measured) -> None:
    reasons = {name: why_not(result) for name, result in measured.results().items()}
    assert reasons["fast"] is None
    assert "another loss" in str(reasons["lossy"])
    measured.losses.parities["fast"] = "failed: the loss is NaN"
    assert why_not(measured.results()["fast"]) == "its loss was not compared (failed: the loss is NaN)"
    del measured.losses.parities["fast"]
    assert why_not(measured.results()["fast"]) == "its loss was not compared (--parity 0)"
    assert "slower" in str(reasons["slow"])
    assert reasons["broken"] == "failed"
