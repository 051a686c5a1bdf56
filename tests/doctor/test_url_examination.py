"""Reads of an examination of data below a URL, behind a proxy with the latency and the refusals of a service."""

from pathlib import Path

import pytest

from imagenet_opt.config.compose import composed
from imagenet_opt.doctor.examination import Examination
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.probe.throughput import Span
from tests.conftest import write_images
from tests.faulty_proxy import FaultyProxy
from tests.object_server import upload

LATENCY = 0.1


@pytest.mark.slow
def test_stages_read_from_the_service_and_from_the_cache_and_refused_requests_are_counted(
    bucket: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    url = upload(write_images(tmp_path / "images", num_classes=3, per_class=22), f"{bucket}/in1k")
    proxy.delay_seconds = LATENCY
    overrides = (
        *(f"data.root={url}", f"data.cache_dir={tmp_path}/cache", "data.batch_size=8", "data.image_size=32"),
        *("data.num_workers=1", "data.reads_in_flight=4", "trainer.accelerator=cpu", "model.name=test_resnet"),
    )
    examination = Examination(Testbed(composed(overrides)), budget_seconds=6, announce=lambda name: None)
    setup, ceilings = examination.setup, examination.ceilings
    for experiment in ("touch", "read_from_storage", "warm", "read_from_memory"):
        getattr(examination, experiment)(Span(0.5, longest=6))
    proxy.fault = lambda number, path: "503" * (path.endswith(".JPEG") and number % 5 == 0)
    examination.load_from_storage(Span(0.5, longest=6))
    assert setup.cached_share == 0.0 and setup.cache_room == 1.0 and not examination.found["left_out"]
    cold = ceilings["loader_cold"]
    assert 4 / LATENCY > cold.images_per_second > 0, "4 in flight"
    assert ceilings["storage_cached"].images_per_second > 2 * cold.images_per_second
    assert 0.1 < cold.facts["throttled"] / cold.facts["requests"] < 0.3
