from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_opt.cli import study_queue
from imagenet_opt.cli.study_queue import drain, run, slowed
from imagenet_opt.config.compose import composed
from imagenet_opt.errors import ConfigError
from imagenet_opt.probe.testbed import Patient
from tests.cli.studies import small_request
from tests.conftest import write_images


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    root = write_images(tmp_path_factory.mktemp("queue"), num_classes=3, per_class=30)
    return (f"data.root={root}", f"data.cache_dir={root}/cache", "data.batch_size=6", "data.image_size=32")


@pytest.mark.slow
def test_each_depth_beside_the_law(
    overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    options = {"prefetch_factors": [1, 2], "num_steps": 9, "load_seconds": 0.06}
    request = small_request("queue", tmp_path, *overrides, **options)
    measured, calculated = run(request)
    assert [row[:2] for row in measured.rows] == [("1", 2.0), ("2", 3.0)]
    assert len(measured.columns) == len(measured.rows[0])
    assert "Calculated" in calculated.title
    for name in ("alone", "drain"):
        monkeypatch.setattr(study_queue, name, pytest.fail)
    assert run(request) == [measured, calculated]  # all is there, and what the device was simulated by


@pytest.mark.slow
def test_the_queue_is_full_before_the_first_step(overrides: tuple[str, ...], checked: None) -> None:
    """The batches that the DataLoader keeps, and one that the prefetcher's thread holds; however slowly they come."""
    patient = Patient(composed(overrides))
    how = slowed(patient.how, 0.6, num_requests=6)
    assert (how.num_workers, how.reads_in_flight) == (1, 1)
    assert how.added_latency_ms == pytest.approx(100)
    found = drain(patient, replace(how, prefetch_factor=1), load_seconds=0.6, compute_seconds=0.001, num_steps=6)
    assert found.num_ready == 1 + 1
    assert len(found.waits) == 6


def test_steps_that_need_more_batches_than_there_are_images(overrides: tuple[str, ...], checked: None) -> None:
    patient = Patient(composed(overrides))
    how = replace(slowed(patient.how, None, 6), prefetch_factor=1)
    assert len(drain(patient, how, load_seconds=0.01, compute_seconds=0.0001, num_steps=40).waits) == 40


def test_a_queue_that_hides_for_ever_is_no_study(overrides: tuple[str, ...], tmp_path: Path, checked: None) -> None:
    with pytest.raises(ConfigError, match="study=queue: load_over_compute"):
        run(small_request("queue", tmp_path, *overrides, load_over_compute=0.5))
