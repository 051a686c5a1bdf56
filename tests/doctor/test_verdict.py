"""The verdict on hand-made measurements; on those of real runs, see test_recorded.py."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from imagenet_opt.doctor import examination, reading
from imagenet_opt.doctor.causes.cause import CAUSES
from imagenet_opt.doctor.confidence import confidence
from imagenet_opt.doctor.diagnosis import Finding, Measurements
from imagenet_opt.doctor.diagnosis_file import read_diagnosis, write_diagnosis
from imagenet_opt.doctor.evidence import Evidence, evidence_of
from imagenet_opt.doctor.explanation import explanation, gap, least_stage
from imagenet_opt.doctor.facts import Facts
from imagenet_opt.doctor.terminal_view import print_diagnosis
from imagenet_opt.doctor.verdict import RULES, Rule, conclude, is_judged, judge
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.report.charts import ceilings
from imagenet_opt.report.comparison import metric_rows, verdict_rows
from imagenet_opt.report.key_figures import tiles
from imagenet_opt.report.page import about
from imagenet_opt.report.run_files import Record
from tests.doctor.diagnoses import change

DEVICE_SECONDS = 0.1
"""Of a batch of 32: 320 images per second."""


def seen(rates: dict[str, float] | None = None, phases: dict[str, float] | None = None, **facts: Any) -> Evidence:
    """A machine with 4 CPUs whose GPU is the limit, but for what is said."""
    all_rates = {
        "gpu": 320.0,
        "gpu_beside_loader": 318.0,
        "loader_warm": 1500.0,
        "loader_cold": 1400.0,
        "decode_one": 400.0,
        "decode_all": 1500.0,
        "storage_cached": 30_000.0,
        "storage_cold": 5000.0,
        "copy": 40_000.0,
        "full_warm": 318.0,
        "full_cold": 316.0,
    }
    curves = facts.pop("curves", {})
    usual = {
        "usable_cpus": 4,
        "machine_cpus": 4,
        "num_workers": 4,
        "prefetch_factor": 4,
        "rated_images_per_second": 320.0,
        "main_cpu_seconds": 0.01,
        "mb_per_image": 0.11,
    }
    measurements = Measurements(
        batch_size=32,
        simulated="a10g",
        ceilings={
            name: Ceiling((rate,), {"device_seconds": DEVICE_SECONDS})
            for name, rate in (all_rates | (rates or {})).items()
        },
        phases={"fetch": 0.001, "step": 0.08, "device": 0.0} | (phases or {}),
        facts=Facts(**usual | facts),
        curves=curves,
    )
    return Evidence(measurements=measurements)


SLOW_STORAGE = {"loader_cold": 60.0, "storage_cold": 65.0, "full_cold": 58.0}
SLOW_DECODE = {"loader_warm": 150.0, "loader_cold": 148.0, "decode_all": 152.0, "full_warm": 140.0, "full_cold": 139.0}
STARVED = {"fetch": 0.13}

STORIES = {
    "healthy": seen(),
    "slow_gpu": change(
        seen({name: 120.0 for name in ("gpu", "gpu_beside_loader", "full_warm", "full_cold")}),
        ceilings={
            name: Ceiling((120.0 if name.startswith(("gpu", "full")) else 1500.0,), {"device_seconds": 32 / 120})
            for name in seen().ceilings
        },
    ),
    "storage_latency": seen(
        SLOW_STORAGE, {"fetch": 0.45}, storage_bound="latency", storage_latency_seconds=0.3, requests_in_flight=16.0
    ),
    "storage_bandwidth": seen(SLOW_STORAGE, {"fetch": 0.45}, storage_bound="bandwidth"),
    "lazy_mount": seen(
        SLOW_STORAGE,
        {"fetch": 0.45},
        storage_bound="latency",
        lazy=True,
        first_touch_seconds=0.4,
        second_touch_seconds=0.005,
    ),
    "few_workers": seen(
        SLOW_DECODE | {"decode_one": 152.0}, STARVED, num_workers=1, curves={"workers": ((1.0, 152.0), (4.0, 600.0))}
    ),
    "few_cpus": seen(SLOW_DECODE, STARVED, usable_cpus=1, num_workers=1, cpu_limit="affinity"),
    "slow_decode": seen(SLOW_DECODE, STARVED, megapixels=12.0),
    "busy_neighbour": seen(SLOW_DECODE, STARVED, others_cpus=2.0, others_names="stress (pid 7)"),
    "small_prefetch": seen({"full_warm": 230.0, "full_cold": 228.0}, {"fetch": 0.04}, prefetch_factor=1),
    "host_sync": seen({"full_warm": 240.0, "full_cold": 240.0}, waits_per_step=1.0, waits_places="item at mine.py:7"),
    "launch_bound": seen({name: 200.0 for name in ("gpu", "gpu_beside_loader", "full_warm", "full_cold")}),
    "slow_logging": seen({"full_warm": 200.0, "full_cold": 200.0}, {"logging": 0.15}),
    "checkpoint_stall": seen({"full_warm": 200.0, "full_cold": 200.0}, {"checkpoint": 0.15}),
    "slow_callback": seen({"full_warm": 200.0, "full_cold": 200.0}, {"callback Mine": 0.15}),
    "slow_copy": seen({"copy": 150.0, "full_warm": 145.0, "full_cold": 145.0}),
    "contention": seen({"gpu_beside_loader": 200.0, "full_warm": 195.0, "full_cold": 195.0}),
    "unexplained": seen({"full_warm": 200.0, "full_cold": 200.0}),
}


@pytest.mark.parametrize("cause", STORIES)
def test_each_story_has_its_cause_and_no_other(cause: str) -> None:
    found = judge(STORIES[cause])
    assert found.cause == cause
    fired = [finding.rule for finding in found.findings if finding.fired]
    assert fired == ([] if cause in ("healthy", "unexplained") else [cause])


def test_every_cause_has_a_story_and_a_rule() -> None:
    assert STORIES.keys() == CAUSES.keys()
    rules = {rule.name for rule in RULES}
    assert rules == CAUSES.keys() - {"healthy", "unexplained"}


def test_a_rule_gives_way_to_earlier_rules_only() -> None:
    earlier: set[str] = set()
    for rule in RULES:
        assert set(rule.unless) <= earlier, rule.name
        earlier.add(rule.name)


def test_a_rule_that_gives_way_has_not_fired_and_promises_nothing() -> None:
    rule = next(rule for rule in RULES if rule.name == "few_workers")
    assert rule.look(STORIES["few_workers"]).fired
    finding = rule.look(STORIES["few_workers"], {"busy_neighbour"})
    assert finding.fired is False and finding.gain is None


@pytest.mark.parametrize("cause", STORIES)
def test_parts_of_a_step_add_up_to_the_full_run(cause: str) -> None:
    *parts, whole = judge(STORIES[cause]).waterfall
    assert sum(part.seconds for part in parts) == pytest.approx(whole.seconds)
    assert whole.seconds == pytest.approx(32 / STORIES[cause].measured_rate)


@pytest.mark.parametrize("cause", STORIES)
def test_a_diagnosis_can_be_made_again_from_itself(cause: str) -> None:
    found = judge(STORIES[cause])
    assert judge(evidence_of(found)) == found


def test_the_gain_is_what_the_next_limit_allows() -> None:
    found = judge(STORIES["storage_latency"])
    assert found.next_gain == pytest.approx(318 / 58)
    assert found.next_stage == "gpu_beside_loader"
    assert found.sentence == "Storage-bound: 58 of a possible 318 img/s."


def test_a_healthy_run_names_what_a_faster_gpu_would_meet() -> None:
    """The copy, which is made ahead, 40000 images/s; 4 CPUs: 0.01 s of one for 32 images, 4/1500 s for one."""
    found = judge(STORIES["healthy"])
    together = 4 / (0.01 / 32 + 4 / 1500)
    assert found.next_gain == pytest.approx(together / 316)
    assert found.next_stage == "decode_all"
    assert found.sentence == "Healthy: the simulated a10g computes 99% of the time, 316 img/s."


def test_the_copy_that_is_the_next_limit_is_the_one_that_was_seen_beside_the_gpu() -> None:
    """A faster GPU would take what is copied while it computes, 500 images/s, and not the 40000 of the copy alone."""
    found = judge(seen({"copy_overlapped": 500.0}))
    assert found.next_gain == pytest.approx(500 / 316)
    assert found.next_stage == "copy_overlapped"


def test_without_kernels_seen_late_launches_are_not_looked_at() -> None:
    unseen = change(
        STORIES["launch_bound"], facts=replace(seen().facts, no_kernels_reason="no kernel was seen; ask for it")
    )
    rule = next(finding for finding in judge(unseen).findings if finding.rule == "launch_bound")
    assert rule.fired is None and rule.evidence == "no kernel was seen; ask for it"


def test_what_is_unexplained_is_a_number() -> None:
    found = judge(STORIES["unexplained"])
    assert found.unexplained == pytest.approx(1 - 200 / 318)
    assert found.next_gain == pytest.approx(318 / 200)
    assert judge(STORIES["healthy"]).unexplained == pytest.approx(2 / 318)


def test_a_cause_does_not_hide_what_it_leaves_unexplained() -> None:
    slower = judge(seen(SLOW_STORAGE | {"full_cold": 42.0}, {"fetch": 0.7}, storage_bound="latency", lazy=False))
    assert slower.cause == "storage_latency"
    assert gap(slower) == "30% of the rate that the stages alone allow"
    assert gap(judge(STORIES["slow_logging"])).endswith("this cause appears only in the full run")


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
    assert "one process reads 65 img/s, its CPU busy" in dict(explanation(found))["evidence"]


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


@pytest.mark.parametrize(
    "name",
    [
        "storage_bound",
        "requests_in_flight",
        "lazy",
        "no_kernels_reason",
        "others_cpus",
        "waits_per_step",
        "main_cpu_seconds",
    ],
)
def test_what_the_rules_read_is_measured(name: str) -> None:
    """By the two files of the doctor's experiments, which alone make evidence."""
    files = (examination.__file__, reading.__file__)
    assert any(f"self.facts.{name} = " in Path(file).read_text() for file in files)


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


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_names_all_that_it_needs(rule: Rule) -> None:
    """It runs on these measurements alone, and without one of them it is not looked at. A key that is not on its list,
    as a typo is not, raises KeyError."""
    whole = seen(machine_cpus=8, num_workers=2)
    names = {"loader": "loader_cold", "storage": "storage_cold", "full": "full_cold"}
    keys = {names.get(need, need) for need in rule.needs}
    ceilings = {name: ceiling for name, ceiling in whole.ceilings.items() if name in keys}
    only = change(whole, ceilings=ceilings)
    assert "not measured" not in rule.look(only).evidence
    for key in keys:
        found = rule.look(change(only, ceilings={name: rate for name, rate in ceilings.items() if name != key}))
        assert found.fired is None and found.evidence.startswith("not measured: ")


def test_a_mistake_in_a_rule_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def misspelt(seen: Evidence) -> Finding:
        return Finding("misspelt", bool(seen.ceilings["gpuu"]), "")

    monkeypatch.setattr("imagenet_opt.doctor.verdict.RULES", (Rule(misspelt, ()),))
    with pytest.raises(KeyError, match="gpuu"):
        conclude(change(seen(), facts=replace(seen().facts, not_measured="the copy to the GPU")))


def test_the_least_stage_is_one_of_the_state_of_the_run() -> None:
    """Reading from memory is no part of a run from storage, however slow that was measured."""
    says = least_stage(judge(seen({"storage_cached": 10.0, "loader_warm": 20.0})))
    assert says == (
        "With files on storage the full run reaches 316 images/s; its slowest stage "
        "'GPU, while the loader runs' reaches 318 images/s."
    )
    faster = least_stage(judge(seen({"loader_cold": 100.0})))
    assert faster is not None and "but its stage 'loader, files on storage' reaches 100" in faster
    assert least_stage(judge(seen({"full_warm": 300.0}, cached_share=1.0))).startswith("With files in memory")


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


DIED = "the device alone (the GPU ran out of memory)"
SHM = Finding("small_shared_memory", True, "64 MiB are too little", environment=True)


def without(*stages: str, not_measured: str | None) -> Evidence:
    whole = STORIES["few_workers"]
    rest = {name: ceiling for name, ceiling in whole.ceilings.items() if name not in stages}
    return change(whole, ceilings=rest, facts=replace(whole.facts, not_measured=not_measured), environment=(SHM,))


def test_what_is_not_needed_does_not_change_the_verdict() -> None:
    found = conclude(without("copy", not_measured=DIED))
    assert found.cause == "few_workers" and is_judged(found)
    assert "not measured: the device alone" in "; ".join(confidence(found).doubts)


def test_without_what_it_needs_there_is_no_verdict_but_all_the_rest(tmp_path: Path) -> None:
    found = conclude(without("gpu", "full_cold", "full_warm", not_measured=DIED))
    assert not is_judged(found)
    assert found.sentence == "Not judged: the device alone (the GPU ran out of memory)"
    assert found.findings == (SHM,) and "loader_cold" in found.measurements.ceilings
    write_diagnosis(found, tmp_path / "doctor.json")
    assert read_diagnosis(tmp_path / "doctor.json") == found
    file = io.StringIO()
    print_diagnosis(found, Console(file=file, width=100, markup=False, highlight=False))
    assert "Not judged" in file.getvalue() and "64 MiB are too little" in file.getvalue()
    assert "it/s" not in file.getvalue(), "no rate of a run that was not made"


def test_a_report_shows_no_rate_of_a_run_that_was_not_made() -> None:
    record = Record("mine", conclude(without("full_cold", "full_warm", not_measured=DIED)), summary={"steps": 7.0})
    assert tiles(record) == []
    words = [annotation.text for annotation in ceilings(record.diagnosis).layout.annotations]
    assert words and not any("measured" in word or "expected" in word for word in words)
    names = {name for name, *_ in metric_rows(record, record)}
    assert "steps" in names and not names & {"measured images/s", "expected images/s", "efficiency"}
    assert "measured / expected" not in {name for name, _ in about(record)["Confidence"]}
    assert {row.name: row.ours for row in verdict_rows(record.diagnosis, record.diagnosis)}["cause"] == "not judged"


def test_nothing_at_all_can_be_printed_too() -> None:
    found = conclude(change(seen(), ceilings={}, facts=replace(seen().facts, not_measured=DIED)))
    print_diagnosis(found, Console(file=io.StringIO(), width=100, markup=False, highlight=False))
    assert found.efficiency == 0 and confidence(found).level != "high"


def test_a_gap_that_nothing_explains_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        conclude(without("gpu", not_measured=None))


def test_whole_evidence_is_judged_as_ever() -> None:
    assert conclude(STORIES["lazy_mount"]) == judge(STORIES["lazy_mount"])
