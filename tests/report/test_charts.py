"""Figures and tiles show the numbers of the diagnosis, and say when an accelerator was simulated."""

import numpy as np
import pytest

from imagenet_opt.doctor.measurements import STAGES
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.report import charts
from imagenet_opt.report.numbers import ceiling_rows, tiles
from imagenet_opt.report.run_files import Record
from tests.doctor.diagnoses import make_diagnosis
from tests.doctor.stories import STORIES


def test_a_bar_for_each_stage_as_long_as_its_rate() -> None:
    figure = charts.ceilings(make_diagnosis())
    bars = {bar.y[0]: bar for bar in figure.data}
    assert list(bars) == list(STAGES.values())
    assert bars[STAGES["full_cold"]].x[0] == pytest.approx(212)
    assert bars[STAGES["gpu"]].error_x.array[0] == pytest.approx(812 * 0.03)
    assert bars[STAGES["storage_cached"]].x[0] == pytest.approx(2 * 812), "cut where more cannot be used"


def test_the_histogram_counts_every_step_and_marks_percentiles() -> None:
    seconds = (np.arange(1, 201) / 1000).tolist()
    figure = charts.histogram(seconds, "the run")
    assert figure.layout.title.text == "Step times: 200 steps of the run, p50 100.5 ms, p99 198.0 ms"
    assert sum(figure.data[0].y) == pytest.approx(1)
    assert [line.x0 for line in figure.layout.shapes] == pytest.approx([100.5, 198.01])


@pytest.mark.parametrize("draw", [charts.ceilings, charts.waterfall, charts.phases])
def test_the_title_names_a_simulated_accelerator(draw) -> None:
    assert "simulated" in draw(make_diagnosis(simulated="a10g")).layout.title.text
    assert "simulated" not in draw(make_diagnosis()).layout.title.text


def test_an_epoch_has_the_images_that_the_doctor_counted() -> None:
    diagnosis = make_diagnosis(measured=100.0, num_samples=360_000)
    assert tiles(Record("run", diagnosis))[0].notes == ("100 images/s", "1.0 h an epoch of 360,000")


def test_a_healthy_run_shows_the_rate_of_a_faster_gpu() -> None:
    labels = {cause: [tile.label for tile in tiles(Record("run", make_diagnosis(cause=cause)))] for cause in STORIES}
    assert labels.pop("healthy") == ["now", "expected", "faster device", "efficiency"]
    assert all(label == ["now", "expected", "if fixed", "efficiency"] for label in labels.values())


def test_the_ratio_is_of_the_printed_rates() -> None:
    """Bursts of 50 and 200 images/s, as often each: 80 on the mean, which a median would call 125."""
    ours = make_diagnosis(ceilings={"full_cold": Ceiling((50.0, 200.0) * 4, in_bursts=True)})
    theirs = make_diagnosis(ceilings={"full_cold": Ceiling((40.0,) * 8)})
    (row,) = ceiling_rows(ours, theirs)
    assert row[1:] == ("80", "40", "2.00 (1.25 to 5.00)")
