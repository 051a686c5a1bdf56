"""Two runs side by side."""

from imagenet_opt.measure.diagnosis import Ceiling
from imagenet_opt.measure.report.difference import ceiling_rows
from imagenet_opt.measure.report.record import Record
from tests.diagnoses import make_diagnosis


def test_the_ratio_is_that_of_the_rates_shown() -> None:
    """Bursts of 50 and 200 images/s, as often each: 80 on the mean, which a median would call 125."""
    ours = make_diagnosis(ceilings={"full_cold": Ceiling((50.0, 200.0) * 4, in_bursts=True)})
    theirs = make_diagnosis(ceilings={"full_cold": Ceiling((40.0,) * 8)})
    (row,) = ceiling_rows(Record("ours", ours), Record("theirs", theirs))
    assert (row.ours, row.theirs) == ("80", "40")
    assert row.ratio == "2.00 (1.25 to 5.00)"
