"""Examinations of data below a URL, behind a proxy with the latency and the refusals of a service."""

from pathlib import Path

import pytest

from imagenet_opt.config.compose import composed
from imagenet_opt.doctor.diagnosis import Diagnosis, judge
from imagenet_opt.doctor.examination import Examination
from imagenet_opt.doctor.reading import EXPERIMENTS
from imagenet_opt.probe.testbed import Testbed
from tests.conftest import write_images
from tests.faulty_proxy import FaultyProxy
from tests.object_server import upload

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]  # Lightning's
LATENCY = 0.1


@pytest.fixture
def overrides(bucket: str, proxy: FaultyProxy, tmp_path: Path) -> tuple[str, ...]:
    url = upload(write_images(tmp_path / "images", num_classes=3, per_class=40), f"{bucket}/in1k")
    proxy.delay_seconds = LATENCY
    return (
        *(f"data.root={url}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=8", "data.image_size=32"),
        *("data.num_workers=1", "data.reads_in_flight=4", "trainer.accelerator=cpu", "model.name=test_resnet"),
    )


def examined(overrides: tuple[str, ...]) -> Diagnosis:
    announced: list[str] = []
    examination = Examination(Testbed(composed(overrides)), budget_seconds=6, announce=announced.append)
    diagnosis = judge(examination.evidence(command="mine"))
    assert announced == list(EXPERIMENTS) and not examination.failed
    return diagnosis


def test_a_cold_cache_is_named_and_the_stages_read_from_the_storage_and_from_the_cache(
    overrides: tuple[str, ...],
) -> None:
    diagnosis = examined(overrides)
    assert diagnosis.cause == "cold_cache", [finding for finding in diagnosis.findings if finding.fired]
    evidence, rates = diagnosis.measurements, diagnosis.measurements.ceilings
    assert (evidence.cached_share, evidence.room, evidence.num_refused) == (0.0, 1.0, 0)
    assert evidence.latency_seconds >= LATENCY
    assert rates["storage_cached"].images_per_second > 10 * rates["loader_cold"].images_per_second
    assert 4 / LATENCY > rates["loader_cold"].images_per_second > 1 / LATENCY, "4 in flight"
    assert rates["full_warm"].images_per_second > 2 * rates["full_cold"].images_per_second
    assert f"imagenet-opt hydrate {overrides[0]} {overrides[1]}" in [text for _, text in diagnosis.explanation]


def test_refused_requests_are_counted_and_named(overrides: tuple[str, ...], proxy: FaultyProxy) -> None:
    proxy.fault = lambda number, path: "503" * (path.endswith(".JPEG") and number % 5 == 0)
    diagnosis = examined(overrides)
    assert diagnosis.cause == "throttled", [finding for finding in diagnosis.findings if finding.fired]
    assert 0.1 < diagnosis.measurements.num_refused / diagnosis.measurements.num_requests < 0.3
