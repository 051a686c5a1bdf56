"""The numbers of a page are those of the diagnosis."""

from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.report.numbers import ceiling_rows, tiles
from imagenet_opt.report.run_files import Record
from tests.doctor.diagnoses import make_diagnosis


def test_an_epoch_has_the_images_that_the_doctor_counted() -> None:
    diagnosis = make_diagnosis(measured=100.0, num_samples=360_000)
    assert tiles(Record("run", diagnosis))[0].notes == ("100 images/s", "1.0 h an epoch of 360,000")


def test_the_ratio_is_of_the_printed_rates() -> None:
    """Bursts of 50 and 200 images/s, as often each: 80 on the mean, which a median would call 125."""
    ours = make_diagnosis(ceilings={"full_cold": Ceiling((50.0, 200.0) * 4, in_bursts=True)})
    theirs = make_diagnosis(ceilings={"full_cold": Ceiling((40.0,) * 8)})
    (row,) = ceiling_rows(ours, theirs)
    assert row[1:] == ("80", "40", "2.00 (1.25 to 5.00)")
