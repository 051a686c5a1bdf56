"""Examinations of data below a URL, behind a proxy with the latency and the refusals of a service."""

from pathlib import Path

import pytest

from imagenet_opt.config.compose import composed
from imagenet_opt.doctor.diagnosis import judge
from imagenet_opt.doctor.examination import EXPERIMENTS, Examination
from imagenet_opt.probe.testbed import Testbed
from tests.conftest import write_images
from tests.faulty_proxy import FaultyProxy
from tests.object_server import upload

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]  # Lightning's
LATENCY = 0.1


def test_stages_read_from_the_service_and_from_the_cache_and_refused_requests_are_counted(
    bucket: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    url = upload(write_images(tmp_path / "images", num_classes=3, per_class=40), f"{bucket}/in1k")
    proxy.delay_seconds = LATENCY
    proxy.fault = lambda number, path: "503" * (path.endswith(".JPEG") and number % 5 == 0)
    overrides = (
        *(f"data.root={url}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=8", "data.image_size=32"),
        *("data.num_workers=1", "data.reads_in_flight=4", "trainer.accelerator=cpu", "model.name=test_resnet"),
    )
    announced: list[str] = []
    examination = Examination(Testbed(composed(overrides)), budget_seconds=6, announce=announced.append)
    evidence = examination.evidence(command="mine")
    assert announced[1:] == list(EXPERIMENTS) and not examination.failed
    assert evidence.cached_share == 0.0 and evidence.setup.cache and evidence.setup.cache.room == 1.0
    cold = evidence.ceilings["loader_cold"]
    assert 4 / LATENCY > cold.images_per_second > 0, "4 in flight"
    assert evidence.ceilings["storage_cached"].images_per_second > 10 * cold.images_per_second
    assert 0.1 < cold.facts["throttled"] / cold.facts["requests"] < 0.3
    assert judge(evidence).cause == "throttled", [finding for finding in judge(evidence).findings if finding.fired]
