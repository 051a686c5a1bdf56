"""When each cause is the verdict, and what its remedy and gain are."""

from dataclasses import replace
from typing import Any

import pytest

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.explanation import explanation
from imagenet_opt.doctor.verdict import judge
from imagenet_opt.measure.stats.rate import Ceiling
from tests.doctor.diagnoses import change
from tests.doctor.stories import SLOW_DECODE, SLOW_STORAGE, STARVED, STORIES, seen


def test_less_contention_ends_at_the_gpu_alone() -> None:
    assert judge(STORIES["contention"]).next_gain == pytest.approx(320 / 195)


def test_contention_with_one_worker_cannot_be_mended_by_fewer() -> None:
    facts = replace(STORIES["contention"].facts, num_workers=1)
    found = judge(change(STORIES["contention"], facts=facts))
    assert found.cause == "contention" and found.next_gain is None
    rule = next(finding for finding in found.findings if finding.rule == "contention")
    assert not rule.overrides and rule.commands == ("#SBATCH --cpus-per-task=5",)


def test_a_sync_within_the_network_is_in_the_gpus_own_rate_too() -> None:
    """It takes 200 images/s alone as well; by the device's seconds 320."""
    rates = {name: 200.0 for name in ("gpu", "gpu_beside_loader", "full_warm", "full_cold")}
    found = judge(seen(rates, waits_per_step=1.0, waits_places="item at mine.py:7"))
    assert found.cause == "host_sync"
    assert found.next_gain == pytest.approx(320 / 200)


def test_smaller_images_were_not_measured() -> None:
    found = judge(STORIES["slow_decode"])
    assert found.next_gain is None and found.next_stage is None
    assert found.sentence == "CPU-bound: 139 img/s, and the simulated a10g alone reaches 320."


def test_a_pack_brings_what_its_forecast_says() -> None:
    """Twice as many images/s a worker; the simulated device takes 320."""
    forecast = {"pack_option": "for=176", "pack_speedup": 2.0, "pack_bytes_ratio": 0.4}
    found = judge(seen(SLOW_DECODE, STARVED, megapixels=12.0, **forecast))
    rule = next(finding for finding in found.findings if finding.rule == "slow_decode")
    assert (
        found.next_gain == pytest.approx(2 * 148 / 139, rel=0.01)
        and "2.0 times as many img/s per worker" in rule.remedy
    )
    assert rule.commands[0].endswith(" for=176")


def test_more_reads_in_flight_bring_what_was_read_with_as_many() -> None:
    curve = ((1.0, 4.0), (16.0, 65.0), (64.0, 180.0), (256.0, 190.0))
    facts: dict[str, Any] = {"storage_bound": "latency", "requests_in_flight": 16.0}
    facts["curves"] = {"reads_in_flight": curve}
    fixed = judge(seen(SLOW_STORAGE, {"fetch": 0.45}, reads_in_flight="4", **facts))
    assert fixed.cause == "storage_latency" and fixed.next_gain == pytest.approx(180 / 58)
    follows = judge(seen(SLOW_STORAGE, {"fetch": 0.45}, reads_in_flight="auto", **facts))
    rule = next(finding for finding in follows.findings if finding.rule == "storage_latency")
    assert rule.overrides == ("data.reads_in_flight=16",), "64 in flight of 4 workers"
    assert rule.gain == pytest.approx(180 / 58)


def test_without_a_better_depth_the_data_has_to_move() -> None:
    curve = ((1.0, 30.0), (16.0, 65.0), (64.0, 68.0))
    facts: dict[str, Any] = {"storage_bound": "latency", "requests_in_flight": 16.0}
    facts["curves"] = {"reads_in_flight": curve}
    found = judge(seen(SLOW_STORAGE, {"fetch": 0.45}, reads_in_flight="auto", **facts))
    rule = next(finding for finding in found.findings if finding.rule == "storage_latency")
    assert not rule.overrides and rule.commands[0].startswith("imagenet-opt pack")
    assert rule.gain == pytest.approx(318 / 58)


def test_a_host_whose_cpus_are_taken_is_not_called_slow_to_launch() -> None:
    rates = SLOW_STORAGE | {"gpu": 70.0}
    slow = {"storage_bound": "latency", "lazy": False}
    alone, crowded = (judge(seen(rates, {"fetch": 0.45}, others_cpus=others, **slow)) for others in (0.0, 1.5))
    fired = [{finding.rule for finding in found.findings if finding.fired} for found in (alone, crowded)]
    assert fired == [{"storage_latency", "launch_bound"}, {"storage_latency"}]


def test_storage_is_not_blamed_for_a_busy_reader() -> None:
    found = judge(seen(SLOW_STORAGE, {"fetch": 0.45}, storage_bound="cpu"))
    assert found.cause == "slow_decode"
    assert "one process, limited by its CPU, reads 65 img/s" in dict(explanation(found))["evidence"]


def test_what_is_not_known_of_first_touches_is_not_judged() -> None:
    late = {"storage_bound": "latency", "first_touch_evidence": "2 requests only"}
    found = judge(seen(SLOW_STORAGE, {"fetch": 0.45}, **late))
    rule = next(finding for finding in found.findings if finding.rule == "lazy_mount")
    assert rule.fired is None and "2 requests only" in rule.evidence
    assert found.cause == "storage_latency"


def test_released_files_are_lazy_where_no_touch_has_told() -> None:
    command = ("imagenet-opt hydrate data.root=/fsx",)
    says = Finding("released_files", True, "40 of 200 files are released", commands=command, environment=True)
    slow = seen(SLOW_STORAGE, {"fetch": 0.45}, storage_bound="latency")
    found = judge(change(slow, environment=(says,)))
    assert found.cause == "lazy_mount" and dict(explanation(found))["evidence"] == "40 of 200 files are released"
    assert judge(change(seen(), environment=(says,))).cause == "healthy"
    touched = change(slow, facts=replace(slow.facts, lazy=False), environment=(says,))
    assert judge(touched).cause == "storage_latency", "1 of 200 would not make all the others slow"
    lost = change(slow, environment=(replace(says, commands=()),))
    assert judge(lost).cause == "storage_latency", "what is lost cannot be fetched"


def test_copies_that_are_not_made_ahead_add_to_the_step() -> None:
    """1/(1/320 + 1/640) = 213.3 images/s."""
    rates = {"copy": 640.0, "full_warm": 210.0, "full_cold": 210.0}
    waits = change(seen(rates), config={"data": {"copies": "pinned"}})
    assert waits.expected_rate == pytest.approx(1 / (1 / 320 + 1 / 640))
    found = judge(waits)
    rule = next(finding for finding in found.findings if finding.rule == "slow_copy")
    assert found.cause == "slow_copy" and rule.overrides == ("data.copies=ahead",)
    assert found.next_gain == pytest.approx(320 / 210)
    assert seen(rates).expected_rate == 318.0


def test_a_cure_beyond_the_next_bottleneck_is_not_promised() -> None:
    decodes_little = STORIES["storage_bandwidth"].ceilings | {"decode_all": Ceiling((200.0,), {})}
    found = judge(change(STORIES["storage_bandwidth"], ceilings=decodes_little))
    assert found.next_gain == pytest.approx(200 / 58, rel=0.05)  # the training process takes its CPU time
    assert found.next_stage == "decode_all"


def test_data_in_memory_is_judged_by_the_run_from_memory() -> None:
    found = judge(seen(SLOW_STORAGE, cached_share=1.0))
    assert (found.cause, found.measured) == ("healthy", 318.0)


def test_data_that_is_partly_in_memory_is_judged_by_the_run_from_storage() -> None:
    assert judge(seen(SLOW_STORAGE, {"fetch": 0.45}, cached_share=0.6, storage_bound="latency")).measured == 58.0


def test_without_workers_training_waits_for_each_batch() -> None:
    """320 images/s of the GPU and 100 of one process, one after the other."""
    rates = {"loader_warm": 100.0, "loader_cold": 100.0, "decode_all": 100.0, "full_warm": 76.0, "full_cold": 76.0}
    alone = seen(
        rates, {"fetch": 0.32}, num_workers=0, prefetch_factor=0, curves={"workers": ((0.0, 100.0), (4.0, 390.0))}
    )
    assert alone.expected_rate == pytest.approx(1 / (1 / 320 + 1 / 100))
    found = judge(alone)
    assert found.cause == "few_workers"
    assert found.findings[[finding.rule for finding in found.findings].index("few_workers")].overrides == (
        "data.num_workers=4",
    )


def test_more_cpus_end_where_they_are_taken_again() -> None:
    """2 CPUs instead of 1: twice 120 images/s, of 320 that the GPU takes."""
    rates = SLOW_DECODE | {"full_cold": 120.0, "full_warm": 120.0}
    found = judge(seen(rates, STARVED, usable_cpus=1, machine_cpus=2, num_workers=1))
    assert (found.cause, found.next_gain, found.next_stage) == ("few_cpus", 2.0, "decode_all")


def test_training_and_loading_share_the_cpus() -> None:
    """4 CPUs; a step of 32 images takes 0.16 s of one, an image 4/400 s: 1/200 + 1/100 s together."""
    assert seen({"decode_all": 400.0}, main_cpu_seconds=0.16).cpu_rate == pytest.approx(4 / (1 / 200 + 1 / 100))


def test_sync_is_named_with_its_line() -> None:
    assert "item at mine.py:7" in dict(explanation(judge(STORIES["host_sync"])))["evidence"]


def test_what_is_not_known_of_a_gpu_is_not_looked_at() -> None:
    rule = next(finding for finding in judge(seen(rated_images_per_second=0.0)).findings if finding.rule == "slow_gpu")
    assert rule.fired is None


def test_more_workers_share_the_cpus_with_the_training_process() -> None:
    """4 workers would decode 600 images/s on 4 CPUs, of which a step of 32 takes 0.01 s."""
    found = judge(STORIES["few_workers"])
    assert found.next_gain == pytest.approx(min(318 / 139, 320 / 139, 4 / (0.01 / 32 + 4 / 600) / 139), rel=0.01)


LAZY_BUT_TOUCHED: dict[str, Any] = {
    "lazy": True,
    "first_touch_seconds": 0.3,
    "second_touch_seconds": 0.003,
    "first_requests_in_flight": 64,
    "requests_in_flight": 8.0,
}
"""Files that took 0.3 s when the doctor first touched them; its run read them again, at full speed."""


def test_first_touches_decide_even_where_the_run_read_touched_files() -> None:
    """64 requests in flight / 0.3 s = 213 images/s in the first epoch, of 316 in later ones."""
    found = judge(seen(**LAZY_BUT_TOUCHED))
    assert found.cause == "lazy_mount"
    assert found.sentence == "Storage-bound: about 213 img/s in the first epoch, 316 in later ones."
    lines = explanation(found)
    assert "300 ms at their first touch, 3 ms at their second" in dict(lines)["evidence"]
    assert dict(lines)["command"].startswith("imagenet-opt hydrate")
    assert found.next_gain == pytest.approx(316 / (64 / 0.3))


def test_a_lazy_mount_that_answers_enough_requests_at_a_time_is_healthy() -> None:
    assert judge(seen(**LAZY_BUT_TOUCHED | {"first_requests_in_flight": 512})).cause == "healthy"
    assert judge(seen(**LAZY_BUT_TOUCHED, cached_share=1.0)).cause == "healthy", "nothing is read from the mount"


def test_more_batches_ahead_are_no_cure_of_a_run_that_gives_what_its_stages_give() -> None:
    """The GPU, slowed down by others on its CPUs, takes 113 images/s beside the loader, and the run gives 140."""
    rates = {"gpu": 132.0, "gpu_beside_loader": 113.0, "loader_cold": 154.0, "decode_all": 353.0, "full_cold": 140.0}
    found = judge(seen(rates | {"storage_cold": 128.0}, {"fetch": 0.1}, storage_bound="bandwidth", lazy=False))
    assert "small_prefetch" not in [finding.rule for finding in found.findings if finding.fired]


def test_a_storage_that_stalls_is_named_though_it_is_quick_in_between() -> None:
    """Between its stalls it gives 5000 images/s; the workers wait 3 s for a batch that they decode in 0.1 s."""
    rates = {"loader_cold": 60.0, "full_cold": 58.0}
    quiet = seen(rates, {"fetch": 0.45}, storage_bound="latency", storage_latency_seconds=0.004, lazy=False)
    facts = {"read_seconds": 3.0, "decode_seconds": 0.1, "longest_gap_seconds": 5.0}
    stalls = change(quiet, ceilings=quiet.ceilings | {"loader_cold": Ceiling((60.0,), facts)})
    found = judge(stalls)
    assert found.cause == "storage_latency"
    assert dict(explanation(found))["evidence"].endswith("60 img/s, with pauses of up to 5.0 s")
