"""Causes of data below a URL: refused requests, and a local cache that is cold, too small or slow."""

from typing import Any

import pytest

from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.explanation import explanation, least_stage
from imagenet_opt.doctor.verdict import judge
from imagenet_opt.measure.stats.rate import Ceiling
from tests.doctor.diagnoses import change
from tests.doctor.stories import READING, REMOTE, SLOW_OBJECTS, STORIES, finding_of, story

DATA = {"root": "s3://bucket/in1k", "cache_dir": "/nvme/my cache", "cache_gb": 40}
HYDRATE = "imagenet-opt hydrate data.root=s3://bucket/in1k"


def configured(run: Evidence, **data: Any) -> Evidence:
    return change(run, config={"data": DATA | data})


def test_a_cold_cache_passes_and_can_be_filled_before() -> None:
    """58 img/s from the storage, 310 from the cache."""
    diagnosis = judge(configured(STORIES["cold_cache"]))
    assert diagnosis.sentence == "Storage-bound: about 58 img/s in the first epoch, 310 in later ones."
    assert diagnosis.next_gain == pytest.approx(310 / 58)
    lines = dict(explanation(diagnosis))
    assert "has 0% of the data and room for 100%" in lines["evidence"]
    assert lines["command"] == f"{HYDRATE} 'data.cache_dir=/nvme/my cache' data.cache_gb=40"
    assert str(least_stage(diagnosis)).startswith("With files on storage the full run reaches 58 images/s")


def test_more_requests_fill_a_cold_cache_sooner() -> None:
    curves = {"reads_in_flight": ((16.0, 65.0), (64.0, 200.0), (256.0, 210.0))}
    finding = finding_of("cold_cache", story(SLOW_OBJECTS, READING, curves=curves, reads_in_flight="auto", **REMOTE))
    assert finding.fired and finding.overrides == ("data.reads_in_flight=16",)  # 64 in flight of 4 workers
    assert finding.remedy.endswith("more requests in flight fill it sooner")


@pytest.mark.parametrize(("room", "later"), [(0.4, 58 / 0.6), (0.0, 58)])
def test_with_too_little_room_each_epoch_waits_for_the_rest(room: float, later: float) -> None:
    """The storage gives 58 img/s, and 1 - room of each epoch."""
    run = story(SLOW_OBJECTS, READING, **REMOTE | {"cache_room": room, "cached_share": room})
    diagnosis = judge(configured(run))
    assert diagnosis.cause == "cache_too_small" and diagnosis.next_gain == pytest.approx(310 / later)
    curves = {"reads_in_flight": ((16.0, 65.0), (256.0, 311.0))}
    near = judge(change(run, ceilings=run.ceilings | {"storage_cold": Ceiling((311.0,))}, curves=curves))
    assert near.next_stage == "gpu_beside_loader", "the cache replaces reads from the storage"
    assert diagnosis.sentence.endswith(f"about {later:.0f} img/s in each later epoch, of a possible 310.")
    command = next(text for label, text in explanation(diagnosis) if label == "command")
    assert command == f"{HYDRATE} 'data.cache_dir=/nvme/my cache' data.cache_gb=null"
    no_limit = finding_of("cache_too_small", configured(run, cache_gb=None))
    assert "data.cache_dir=" in no_limit.commands[0] and "raise data.cache_gb" not in no_limit.remedy


def test_a_cache_of_nearly_all_samples_hides_the_storage() -> None:
    """The storage has to give a tenth of the samples, 58 / 0.1 img/s."""
    assert judge(story(SLOW_OBJECTS, READING, **REMOTE | {"cache_room": 0.9})).cause == "cold_cache"
    filled = story(SLOW_OBJECTS, READING, **REMOTE | {"cache_room": 0.9, "cached_share": 0.9})
    assert not filled.is_cold and judge(filled).measured == 310
    begun = story(SLOW_OBJECTS, READING, **REMOTE | {"cached_share": 0.5})
    assert judge(begun).sentence == "Storage-bound: about 116 img/s in the first epoch, 310 in later ones."


def test_refused_requests_ask_for_fewer_requests_in_flight() -> None:
    finding = finding_of("throttled", configured(STORIES["throttled"]))
    assert "refused 37 of 1000 requests as too many (429, 503), with 16 in flight" in finding.evidence
    assert finding.overrides == ("data.reads_in_flight=2",)  # half as many of 4 workers
    assert finding.remedy.endswith("later epochs read from the local cache")
    assert finding.commands[0].startswith("imagenet-opt pack data.root=s3://bucket/in1k")
    few = story(SLOW_OBJECTS, READING, **REMOTE, storage_requests=1000.0, throttled_requests=9)
    assert judge(few).cause == "cold_cache" and finding_of("throttled", few).fired is False
    packed = configured(
        story(SLOW_OBJECTS, READING, **REMOTE, packed=True, storage_requests=10.0, throttled_requests=3)
    )
    assert not finding_of("throttled", packed).commands


def test_a_slow_disk_of_the_cache_is_no_slow_storage() -> None:
    diagnosis = judge(configured(STORIES["slow_cache"]))
    lines = dict(explanation(diagnosis))
    assert lines["evidence"] == "the disk of the local cache gives 7 MB/s: 65 img/s"
    assert lines["command"] == f"{HYDRATE} data.cache_gb=40 data.cache_dir=/local/nvme/cache"
    assert str(least_stage(diagnosis)).startswith("With samples in the local cache the full run reaches 58 images/s")


def test_in_a_folder_no_cache_is_judged() -> None:
    for rule in ("throttled", "cold_cache", "cache_too_small", "slow_cache"):
        assert finding_of(rule, STORIES["storage_latency"]).fired is False
