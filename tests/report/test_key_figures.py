"""The numbers at the top of a report."""

from imagenet_opt.doctor.diagnosis import VERDICTS
from imagenet_opt.report.key_figures import tiles
from imagenet_opt.report.run_files import Record
from tests.doctor.diagnoses import make_diagnosis


def test_an_epoch_has_the_images_that_the_doctor_counted() -> None:
    diagnosis = make_diagnosis(measured=100.0, num_samples=360_000)
    assert tiles(Record("run", diagnosis), price_per_hour=2)[0].notes == (
        "100 images/s",
        "1.0 h, $2.00 an epoch of 360,000",
    )


def test_all_processes_of_a_machine_share_its_epoch_and_its_price() -> None:
    diagnosis = make_diagnosis(measured=100.0, num_samples=360_000, num_processes=8)
    words = tiles(Record("run", diagnosis), price_per_hour=32)[0].notes[1]
    assert words.startswith("7.5 min, $4.00 an epoch of 360,000") and "8 processes" in words


def test_an_epoch_of_a_small_sample_takes_seconds() -> None:
    diagnosis = make_diagnosis(measured=100.0, num_samples=5)
    assert tiles(Record("run", diagnosis))[0].notes[1] == "0.05 s an epoch of 5"


def test_a_healthy_run_shows_the_rate_of_a_faster_gpu() -> None:
    labels = {cause: [tile.label for tile in tiles(Record("run", make_diagnosis(cause=cause)))] for cause in VERDICTS}
    assert labels.pop("healthy") == ["now", "expected", "faster device", "efficiency"]
    assert all(label == ["now", "expected", "if fixed", "efficiency"] for label in labels.values())
