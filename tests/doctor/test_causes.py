"""The rules of the causes on made-up measurements, and on those of real runs: see suites/doctor/suite.py."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.doctor.causes import CAUSES, judge
from imagenet_opt.doctor.commands import changing
from imagenet_opt.doctor.diagnosis import WITHOUT_CAUSE
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.first_look import PackForecast, Touches
from imagenet_opt.measure.stats.rate import Ceiling
from suites.doctor.cases import CASES
from suites.doctor.suite import tallied
from tests.doctor.stories import (
    EAGER,
    LAZY,
    ON_GPU,
    OTHERS,
    READING,
    SLOW_DECODE,
    SLOW_STORAGE,
    STARVED,
    STORIES,
    finding_of,
    of_url,
    story,
    throttled,
)

RECORDED = Path(__file__).with_name("recorded.jsonl.gz")
MOST_WRONG = 1
"""Of the 20 runs of a case: on a shared machine, other processes sometimes slow down a run."""


def test_the_rules_name_the_known_causes_of_real_runs() -> None:
    rows = map(json.loads, gzip.decompress(RECORDED.read_bytes()).splitlines())
    tallies = tallied((row.pop("case"), row) for row in rows)
    assert sum(tally.causes.total() for tally in tallies.values()) == 260
    for name, tally in tallies.items():
        wrong = [cause for cause in tally.causes.elements() if cause not in CASES[name].right]
        assert len(wrong) <= MOST_WRONG, (name, wrong)


@pytest.mark.parametrize("cause", STORIES)
def test_each_story_has_its_cause(cause: str) -> None:
    diagnosis = judge(STORIES[cause])
    assert diagnosis.cause == cause and STORIES.keys() == {rule.name for rule in (*CAUSES, *WITHOUT_CAUSE)}
    *parts, run = diagnosis.waterfall
    assert sum(part.seconds for part in parts) == pytest.approx(run.seconds)
    assert run.seconds == pytest.approx(32 / STORIES[cause].measured_rate)
    if cause not in ("healthy", "unexplained"):
        assert finding_of(cause, STORIES[cause]).remedy


LAZY_BUT_TOUCHED: dict[str, Any] = {"touches": Touches(0.3, 0.003, True, 64, ""), "in_flight": 8.0}
"""Files took 0.3 s when the doctor first touched them; the run read them again, at full speed."""
RAM_FOR_ALL = {"available_memory": 1 << 40, "rates": {**SLOW_STORAGE, "full_warm": 310.0}, "phases": READING}
LATE = {"rates": {"loader_cold": 60.0, "full_cold": 58.0}, "phases": READING, "touches": EAGER}
CURVE = {"reads_in_flight": ((1.0, 4.0), (16.0, 65.0), (64.0, 180.0), (256.0, 190.0))}
SLOW_READS = {"rates": SLOW_STORAGE, "phases": READING, "touches": EAGER}
MANY_CPUS = {"usable_cpus": 16, "installed_cpus": 16, "cpu_limits": {"affinity": 16}}
SMALL_SHM = MANY_CPUS | {"free_shared_memory": 64 << 20, "lacks_memory": True, "num_workers": 1, "asked_workers": 16}
HYPER_THREADS = MANY_CPUS | {
    "rates": SLOW_DECODE,
    "phases": STARVED,
    "num_workers": 8,
    "curves": {"workers": ((1.0, 20.0), (8.0, 152.0), (16.0, 182.0))},
}
ONE_CPU = {"usable_cpus": 1, "num_workers": 1, "cpu_limits": {"affinity": 4, "cgroup quota": 1}}
SHARE_OF_8_GPUS = {"usable_cpus": 12, "installed_cpus": 96, "cpu_limits": {"affinity": 96}, "num_processes": 8}
SLOW_COPY = {"copy": 150.0, "full_warm": 145.0, "full_cold": 145.0}


def waits(read: float, decode: float, gap: float) -> dict[str, Any]:
    facts = {"read_seconds": read, "decode_seconds": decode, "longest_gap_seconds": gap}
    return LATE | {"facts": {"loader_cold": facts}}


def open_100_ms() -> Evidence:
    """Measured on two cores with batches of 256, a simulated A10G and 100 ms for each open: 256 requests in flight
    read about as fast as 128, a loader with fewer in flight gets less, and the run was faster than the loader alone."""
    rates = {"gpu": 900.0, "gpu_beside_loader": 895.0, "decode_all": 690.0, "decode_one": 400.0}
    rates |= {"storage_cold": 1250.0, "loader_cold": 553.0, "full_cold": 614.0}
    facts = {name: {"device_seconds": 256 / 900} for name in ("gpu", "gpu_beside_loader", "full_cold")}
    facts |= {"loader_cold": {"read_seconds": 0.5, "decode_seconds": 0.4, "num_workers": 2.0}}
    facts |= {"storage_cold": {"latency_median": 0.11}}
    curve = ((1.0, 9.0), (4.0, 37.0), (16.0, 150.0), (64.0, 625.0), (256.0, 1250.0))
    return story(
        rates, {"fetch": 0.01}, facts=facts, in_flight=64.0, batch_size=256, usable_cpus=2, installed_cpus=2,
        cpu_limits={"affinity": 2}, num_workers=2, left_out="nothing stays", touches=EAGER,
        curves={"reads_in_flight": curve},
    )  # fmt: skip


CASES_OF_RULES = {
    "late opens are no bandwidth": (open_100_ms(), "storage_latency", "data.reads_in_flight=128"),
    "more in flight": (story(**SLOW_READS, curves=CURVE), "storage_latency", "data.reads_in_flight=16"),
    "more than configured": (
        story(**SLOW_READS, curves=CURVE, config={"data": {"reads_in_flight": 4}}), "storage_latency", "data.reads_in_flight=auto"
    ),
    "the data has to move": (story(**SLOW_READS), "storage_latency", "imagenet-opt pack"),
    "shards are copied": (
        story(**SLOW_READS, packed=True, config={"data": {"root": "/fsx/packed"}}), "storage_latency", "cp -r /fsx/pa"
    ),
    "RAM for all": (story(**RAM_FOR_ALL, bound="bandwidth", touches=EAGER), "storage_bandwidth", "hydrate"),
    "the storage stalls": (story(**waits(3.0, 2.0, 5.0)), "storage_latency", "pack"),
    "each batch waits for its last file": (story(**waits(3.0, 0.5, 0.2)), "storage_latency", "pack"),
    "a reader without CPU time": (story(**SLOW_READS, bound="cpu"), "slow_decode", "pack"),
    "no first touch measured": (story(**SLOW_READS | {"touches": None}), "storage_latency", "pack"),
    "released files, no first touch": (
        story(**SLOW_READS | {"touches": None}, checked_files=200, released_files=40), "lazy_mount", "hydrate"
    ),
    "first touches decide": (story(**LAZY_BUT_TOUCHED), "lazy_mount", "hydrate"),
    "many reads": (story(**LAZY_BUT_TOUCHED | {"touches": Touches(0.3, 0.003, True, 512, "")}), "healthy", ""),
    "lazy, but in memory": (story(**LAZY_BUT_TOUCHED, cached_share=1.0), "healthy", ""),
    "less than 1 % refused": (throttled(9.0, 1000.0), "storage_latency", "fills the local cache"),
    "half as many": (throttled(3.0, 10.0, packed=True), "throttled", "data.reads_in_flight=2"),
    "fill it sooner": (of_url(curves=CURVE), "storage_latency", "data.reads_in_flight=16"),
    "the storage gives the last tenth in time": (of_url(room=0.9), "storage_latency", "hydrate"),
    "the limit of the cache": (
        of_url(0.4, 0.4, config={"data": {"root": "s3://b/in", "cache_gb": 40}}), "cache_too_small", "data.cache_gb"
    ),
    "Docker's 64 MiB of /dev/shm": (story(SLOW_DECODE, STARVED, **SMALL_SHM), "little_memory", "--shm-size"),
    "memory cuts the batches ahead": (
        story({"full_warm": 230.0, "full_cold": 228.0}, {"fetch": 0.04}, lacks_memory=True, prefetch_factor=1,
              available_memory=1 << 20), "little_memory", "sbatch --mem",
    ),
    "hyper-threads give 1.2 times": (story(**HYPER_THREADS), "slow_decode", "data.num_workers=16"),
    "workers resize": (story(SLOW_DECODE, STARVED, resize_on="worker"), "slow_decode", "data.resize_on=device"),
    "its share of the CPUs": (story(SLOW_DECODE, STARVED, **SHARE_OF_8_GPUS), "slow_decode", "pack"),
    "a quota": (story(SLOW_DECODE, STARVED, **ONE_CPU), "few_cpus", "docker run --cpus"),
    "an idle notebook on the GPU": (story(gpu=OTHERS), "healthy", ""),
    "shared and slow": (story(dict.fromkeys(ON_GPU, 120.0), gpu=OTHERS), "shared_gpu", "CUDA_VISIBLE_"),
    "busy CPUs": (story(dict.fromkeys(ON_GPU, 200.0), others_cpus=1.5), "busy_neighbour", "top"),
    "no second kind of CUDA graphs": (
        story(dict.fromkeys(ON_GPU, 200.0), config={"callbacks": {"acceleration": {"cuda_graph": True}}}),
        "launch_bound", "command imagenet-opt tune",
    ),
    "copies that are not made ahead": (
        story(SLOW_COPY, config={"data": {"copies": "pinned"}}), "slow_copy", "data.copies=ahead"
    ),
    "without workers": (
        story({"loader_cold": 100.0, "decode_all": 100.0, "full_cold": 76.0}, {"fetch": 0.32}, num_workers=0,
              prefetch_factor=0, curves={"workers": ((0.0, 100.0), (4.0, 390.0))}), "few_workers", "data.num_workers=4"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES_OF_RULES)
def test_the_evidence_gives_the_cause_and_a_key_in_its_remedy(case: str) -> None:
    run, cause, remedy = CASES_OF_RULES[case]
    diagnosis = judge(run)
    assert diagnosis.cause == cause, [finding for finding in diagnosis.findings if finding.fired]
    assert remedy in " ".join(f"{label} {text}" for label, text in diagnosis.explanation)


@pytest.mark.parametrize(
    ("curve", "in_flight", "bound"),
    [
        ([(1, 10), (4, 40), (16, 160), (64, 640)], 64, "latency"),
        ([(1, 10), (4, 40), (16, 100), (64, 100)], 16, "bandwidth"),
        ([(1, 10), (4, 40), (16, 100), (64, 100)], 8, "latency"),
        ([(1, 0.2), (4, 40), (16, 100), (64, 100)], 16, "bandwidth"),  # stalled during the first measurement
        ([(1, 0), (4, 40), (16, 100), (64, 100)], 16, "bandwidth"),
    ],
)
def test_what_bounds_the_storage(curve: list[tuple[float, float]], in_flight: float, bound: str) -> None:
    run = story({"loader_cold": 100.0}, in_flight=in_flight, curves={"reads_in_flight": tuple(curve)})
    assert run.storage_bound == bound


def gain(run: Evidence) -> float | None:
    return judge(run).next_gain


def test_gains_are_capped_by_the_next_limit() -> None:
    assert gain(STORIES["storage_latency"]) == pytest.approx(318 / 58)
    assert gain(story(**SLOW_READS, curves=CURVE)) == pytest.approx(180 / 58), "measured with more requests in flight"
    near = replace(
        STORIES["storage_bandwidth"], ceilings=STORIES["storage_bandwidth"].ceilings | {"decode_all": Ceiling((200.0,))}
    )
    assert gain(near) == pytest.approx(200 / 58, rel=0.05) and judge(near).next_stage == "decode_all"
    assert gain(STORIES["few_workers"]) == pytest.approx(min(318, 4 / (0.01 / 32 + 4 / 600)) / 139, rel=0.01)
    assert gain(STORIES["few_cpus"]) == pytest.approx(320 / 139), "4 CPUs, but the GPU trains 320 images/s"
    assert gain(STORIES["slow_decode"]) is None
    packed = PackForecast("for=176", 2.0, 0.4)
    finding = finding_of("slow_decode", story(SLOW_DECODE, STARVED, pack=packed))
    assert finding.gain == pytest.approx(2 * 148 / 139, rel=0.01) and finding.commands[0].endswith(" for=176")
    assert gain(story(**LAZY_BUT_TOUCHED)) == pytest.approx(316 / (64 / 0.3)), "the first epoch"
    assert gain(story(**RAM_FOR_ALL, touches=EAGER)) == gain(of_url()) == pytest.approx(310 / 58)
    assert gain(STORIES["cache_too_small"]) == pytest.approx(310 / (58 / 0.6))
    # A faster GPU, with 4 CPUs: 32 images take 0.01 s of one, an image 4/1500 s.
    assert gain(STORIES["healthy"]) == pytest.approx(4 / (0.01 / 32 + 4 / 1500) / 316)
    assert gain(story({"copy_overlapped": 500.0})) == pytest.approx(500 / 316), "not that of the copy alone"


def test_training_and_loading_share_the_cpus() -> None:
    """4 CPUs; a step of 32 images takes 0.16 s of one, an image 4/400 s: 1/200 + 1/100 s together."""
    run = story({"decode_all": 400.0}, facts={"gpu": {"main_cpu_seconds": 0.16}})
    assert run.cpu_rate == pytest.approx(4 / (1 / 200 + 1 / 100))
    assert story(num_workers=0).expected_rate == pytest.approx(1 / (1 / 320 + 1 / 1400))


def test_nothing_in_effect_is_advised() -> None:
    saves = {"checkpoint": {"every_n_steps": None, "every_minutes": 15.0}}
    config = {"data": {"num_workers": "auto", "shuffle": "block"}, "callbacks": saves, "on": True}
    same = ("data.num_workers=4", "data.shuffle=block", "callbacks.checkpoint.every_n_steps=null", "on=true")
    others = ("data.num_workers=3", "data.shuffle=global", "callbacks.checkpoint.every_n_steps=8")
    assert changing(story(config=config), *same, "callbacks.checkpoint.every_minutes=15", *others) == others


def test_what_cannot_be_judged_says_why() -> None:
    assert "--record-profile" in finding_of("slow_gpu", story(rated_images_per_second=None)).evidence
    assert finding_of("launch_bound", story(no_kernels="no kernel was recorded")).fired is None
    assert finding_of("launch_bound", story(gpu=OTHERS)).fired is None
    few = replace(LAZY, lazy=None, evidence="2 requests only")
    assert "2 requests only" in finding_of("lazy_mount", story(SLOW_STORAGE, READING, touches=few)).evidence


def test_a_text_never_contradicts_the_rates() -> None:
    """Of a number of workers that did not run; of a storage that gives more than the loader takes."""
    workers = finding_of("slow_decode", story(**HYPER_THREADS)).evidence
    assert "8 loader workers decode 152 img/s" in workers and "16 usable CPUs would decode 182" in workers
    run = open_100_ms()
    assert judge(run).measured > judge(run).expected
    assert "110 ms" in finding_of("storage_latency", run).evidence


def test_the_local_cache_serves_what_the_storage_gives_in_time() -> None:
    filled = of_url(0.9, 0.9)
    assert not filled.is_cold and judge(filled).measured == 310
    assert judge(of_url(0.5)).sentence == "Storage-bound: about 116 img/s in the first epoch, 310 in later ones."
