"""Figures and tiles show the numbers of the diagnosis, and say when an accelerator was simulated."""

from itertools import pairwise

import numpy as np
import pytest

from imagenet_opt.doctor.diagnosis import VERDICTS
from imagenet_opt.doctor.measurements import STAGES
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.report import charts
from imagenet_opt.report.comparison import ceiling_rows
from imagenet_opt.report.key_figures import tiles
from imagenet_opt.report.page import finding
from imagenet_opt.report.run_files import Record, Steps
from tests.doctor.diagnoses import RATES, make_diagnosis


def test_a_bar_for_each_stage_as_long_as_its_rate() -> None:
    figure = charts.ceilings(make_diagnosis())
    bars = {bar.y[0]: bar for bar in figure.data}
    assert list(bars) == list(STAGES.values())
    assert bars[STAGES["full_cold"]].x[0] == pytest.approx(212)
    assert bars[STAGES["gpu"]].error_x.array[0] == pytest.approx(812 * 0.03)
    assert bars[STAGES["storage_cached"]].x[0] == pytest.approx(2 * 812), "cut where more cannot be used"
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert f"{STAGES['storage_cached']}  <b>21,400 →</b>" in texts
    assert len(texts) == len(STAGES) and not figure.layout.yaxis.showticklabels, "names stand above the bars"
    assert {line.x0 for line in figure.layout.shapes} == {212, 221}


def test_the_waterfall_ends_where_the_last_bar_ends() -> None:
    found = make_diagnosis()
    *parts, whole = charts.waterfall(found).data
    for before, after in pairwise(parts):
        assert after.base[0] == pytest.approx(before.base[0] + before.x[0])
    assert parts[-1].base[0] + parts[-1].x[0] == pytest.approx(whole.x[0])
    assert whole.x[0] == pytest.approx(256 / RATES["full_cold"] * 1e3)


def test_the_histogram_counts_every_step_and_marks_percentiles() -> None:
    seconds = (np.arange(1, 201) / 1000).tolist()
    figure = charts.histogram({"mine": Steps(tuple(seconds), "the run")})
    assert figure.layout.title.text == "Step times: 200 steps of the run, p50 100.5 ms, p99 198.0 ms"
    assert sum(figure.data[0].y) == pytest.approx(1)
    assert [annotation.text for annotation in figure.layout.annotations] == [" p50", " p99"]
    assert [line.x0 for line in figure.layout.shapes] == pytest.approx([100.5, 198.01])


def test_the_curve_of_the_page_cache_is_beside_the_harmonic_mean() -> None:
    line = charts.curve(make_diagnosis(), "cached_share").data[1]
    half = line.y[list(line.x).index(0.5)]
    assert half == pytest.approx(2 * RATES["storage_cached"] * RATES["storage_cold"]
                                 / (RATES["storage_cached"] + RATES["storage_cold"]))  # fmt: skip


def test_short_phases_are_one_bar_that_lists_them() -> None:
    short = {f"callback C{number}": 0.0001 for number in range(12)}
    figure = charts.phases(make_diagnosis(phases={"fetch": 0.02, **short, "step": 0.08}))
    *seen, others = figure.data
    assert [(bar.y[0], bar.x[0]) for bar in seen] == [("fetch", pytest.approx(20)), ("step", pytest.approx(80))]
    assert others.y[0] == "12 others" and others.x[0] == pytest.approx(1.2)
    assert "12 others  <b>1.2 ms</b>" in [annotation.text for annotation in figure.layout.annotations]
    assert others.hovertemplate.count("<br>") == 11 and "callback C11: 0.10 ms" in others.hovertemplate


@pytest.mark.parametrize("draw", [charts.ceilings, charts.waterfall, charts.phases])
def test_the_title_names_a_simulated_accelerator(draw) -> None:
    assert "simulated" in draw(make_diagnosis(simulated="a10g")).layout.title.text
    assert "simulated" not in draw(make_diagnosis()).layout.title.text


def test_an_epoch_has_the_images_that_the_doctor_counted() -> None:
    diagnosis = make_diagnosis(measured=100.0, num_samples=360_000)
    assert tiles(Record("run", diagnosis), price_per_hour=2)[0].notes == (
        "100 images/s",
        "1.0 h, $2.00 an epoch of 360,000",
    )


def test_a_healthy_run_shows_the_rate_of_a_faster_gpu() -> None:
    labels = {cause: [tile.label for tile in tiles(Record("run", make_diagnosis(cause=cause)))] for cause in VERDICTS}
    assert labels.pop("healthy") == ["now", "expected", "faster device", "efficiency"]
    assert all(label == ["now", "expected", "if fixed", "efficiency"] for label in labels.values())


def test_the_ratio_is_of_the_printed_rates() -> None:
    """Bursts of 50 and 200 images/s, as often each: 80 on the mean, which a median would call 125."""
    ours = make_diagnosis(ceilings={"full_cold": Ceiling((50.0, 200.0) * 4, in_bursts=True)})
    theirs = make_diagnosis(ceilings={"full_cold": Ceiling((40.0,) * 8)})
    (row,) = ceiling_rows(ours, theirs)
    assert (row.ours, row.theirs) == ("80", "40")
    assert row.ratio == "2.00 (1.25 to 5.00)"


def test_headline_and_tile_have_one_share_of_waiting() -> None:
    record = Record(
        "run", None, summary={"throughput/images_per_second": 212.0, "throughput/data_wait_fraction": 0.0449}
    )
    assert "waits for data 4.5% of the time" in finding(record)
    assert [tile.value for tile in tiles(record) if tile.label == "data wait"] == ["4.5%"]
