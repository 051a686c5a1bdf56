"""The rules of the causes on made-up measurements, and on those of real runs: see suites/doctor/suite.py."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.doctor.diagnosis import VERDICTS, judge
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.measurements import PackForecast, Touches
from imagenet_opt.doctor.rule import changing
from imagenet_opt.measure.stats.rate import Ceiling
from imagenet_opt.measure.storage.limit import StorageLimit
from suites.doctor.cases import CASES
from suites.doctor.suite import tallied
from tests.doctor.stories import (
    EAGER,
    LAZY,
    ON_GPU,
    OTHERS,
    READING,
    SLOW_DECODE,
    SLOW_RUN,
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
    assert diagnosis.cause == cause and STORIES.keys() == VERDICTS.keys()
    *parts, run = diagnosis.waterfall
    assert sum(part.seconds for part in parts) == pytest.approx(run.seconds)
    assert run.seconds == pytest.approx(32 / STORIES[cause].measured_rate)
    if cause not in ("healthy", "unexplained", "host_sync", "slow_callback"):
        finding = finding_of(cause, STORIES[cause])
        assert finding.remedy and (finding.overrides or finding.commands)


LAZY_BUT_TOUCHED: dict[str, Any] = {"touches": Touches(0.3, 0.003, True, 64, ""), "in_flight": 8.0}
"""Files took 0.3 s when the doctor first touched them; the run read them again, at full speed."""
RAM_FOR_ALL = {"available_memory": 1 << 40, "rates": {**SLOW_STORAGE, "full_warm": 310.0}, "phases": READING}
LATE = {"rates": {"loader_cold": 60.0, "full_cold": 58.0}, "phases": READING, "bound": "latency", "touches": EAGER}
CURVE = {"reads_in_flight": ((1.0, 4.0), (16.0, 65.0), (64.0, 180.0), (256.0, 190.0))}
SLOW_READS = {"rates": SLOW_STORAGE, "phases": READING, "bound": "latency", "touches": EAGER}
SMALL_SHM = {"free_shared_memory": 64 << 20, "lacks_memory": True, "usable_cpus": 16, "installed_cpus": 16}
SMALL_SHM |= {"cpu_limits": {"affinity": 16}, "num_workers": 1, "asked_workers": 16}
HYPER_THREADS = {"usable_cpus": 16, "installed_cpus": 16, "cpu_limits": {"affinity": 16}, "num_workers": 8}
HYPER_THREADS |= {
    "rates": SLOW_DECODE,
    "phases": STARVED,
    "curves": {"workers": ((1.0, 20.0), (8.0, 152.0), (16.0, 182.0))},
}
ONE_CPU = {"usable_cpus": 1, "cpu_limits": {"affinity": 1}, "num_workers": 1}
SAVES = {"callbacks": {"checkpoint": {"every_n_steps": 9, "every_minutes": 60}}}
SHARE_OF_8_GPUS = {"usable_cpus": 12, "installed_cpus": 96, "cpu_limits": {"affinity": 96}, "num_processes": 8}


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
    curve = ((1.0, 9.0), (4.0, 37.0), (16.0, 150.0), (64.0, 590.0), (256.0, 1250.0))
    run = story(
        rates, {"fetch": 0.01}, facts=facts, in_flight=64.0, batch_size=256, usable_cpus=2, installed_cpus=2,
        cpu_limits={"affinity": 2}, num_workers=2, left_out="nothing stays", touches=EAGER,
        curves={"reads_in_flight": curve}, reads_in_flight="auto",
    )  # fmt: skip
    return replace(run, limits={"storage_cold": StorageLimit("bandwidth", 1250.0, 137.0, 0.11, 128.0, "")})


@pytest.mark.parametrize(
    ("run", "cause", "remedy"),
    [
        # Storage
        pytest.param(open_100_ms(), "storage_latency", "data.reads_in_flight=128", id="late opens are no bandwidth"),
        pytest.param(story(**SLOW_READS, curves=CURVE), "storage_latency", "data.reads_in_flight=16", id="more"),
        pytest.param(
            story(**SLOW_READS, curves=CURVE, reads_in_flight="4"), "storage_latency", "data.reads_in_flight=auto",
            id="more than configured",
        ),
        pytest.param(story(**SLOW_READS), "storage_latency", "imagenet-opt pack", id="the data has to move"),
        pytest.param(
            story(**SLOW_READS, packed=True, config={"data": {"root": "/fsx/packed"}}), "storage_latency",
            "cp -r /fsx/packed", id="shards are copied",
        ),
        pytest.param(
            story(**RAM_FOR_ALL, bound="bandwidth", touches=EAGER), "storage_bandwidth", "hydrate", id="first epoch"
        ),
        pytest.param(story(**RAM_FOR_ALL, bound="latency", touches=EAGER), "storage_latency", "hydrate", id="once"),
        pytest.param(story(**waits(3.0, 2.0, 5.0)), "storage_latency", "pack", id="the storage stalls"),
        pytest.param(story(**waits(3.0, 0.5, 0.2)), "storage_latency", "pack", id="each batch waits for its last file"),
        pytest.param(story(**SLOW_READS | {"bound": "cpu"}), "slow_decode", "pack", id="a reader without CPU time"),
        pytest.param(story(**SLOW_READS | {"touches": None}), "storage_latency", "pack", id="no first touch measured"),
        pytest.param(
            story(**SLOW_READS | {"touches": None}, checked_files=200, released_files=40), "lazy_mount", "hydrate",
            id="released files, no first touch measured",
        ),
        pytest.param(
            story(**SLOW_READS, checked_files=200, released_files=1), "storage_latency", "pack", id="one released file"
        ),
        pytest.param(story(**LAZY_BUT_TOUCHED), "lazy_mount", "hydrate", id="first touches decide"),
        pytest.param(
            story(**LAZY_BUT_TOUCHED | {"touches": Touches(0.3, 0.003, True, 512, "")}), "healthy", "", id="deep enough"
        ),
        pytest.param(story(**LAZY_BUT_TOUCHED, cached_share=1.0), "healthy", "", id="lazy, but in memory"),
        pytest.param(story(SLOW_STORAGE, cached_share=1.0), "healthy", "", id="in memory"),
        # URLs
        pytest.param(throttled(9.0, 1000.0), "cold_cache", "hydrate", id="less than 1 % refused"),
        pytest.param(throttled(3.0, 10.0, packed=True), "throttled", "data.reads_in_flight=2", id="half as many"),
        pytest.param(of_url(curves=CURVE), "cold_cache", "data.reads_in_flight=16", id="fill it sooner"),
        pytest.param(of_url(room=0.9), "cold_cache", "hydrate", id="the storage gives the last tenth in time"),
        pytest.param(
            of_url(0.4, 0.4, config={"data": {"root": "s3://b/in", "cache_gb": 40}}), "cache_too_small",
            "data.cache_gb=null", id="the limit is configured",
        ),
        # Memory and CPUs
        pytest.param(
            story(SLOW_DECODE, STARVED, **SMALL_SHM), "little_memory", "--shm-size", id="Docker's 64 MiB of /dev/shm"
        ),
        pytest.param(
            story({"full_warm": 230.0, "full_cold": 228.0}, {"fetch": 0.04}, lacks_memory=True, prefetch_factor=1),
            "little_memory", "sbatch --mem", id="memory cuts the batches ahead",
        ),
        pytest.param(story(**HYPER_THREADS), "slow_decode", "data.num_workers=16", id="hyper-threads give 1.2 times"),
        pytest.param(
            story(SLOW_DECODE, STARVED, resize_on="worker"), "slow_decode", "data.resize_on=device", id="workers resize"
        ),
        pytest.param(story(SLOW_DECODE, STARVED, **SHARE_OF_8_GPUS), "slow_decode", "pack", id="its share of the CPUs"),
        pytest.param(
            story(SLOW_DECODE, STARVED, **ONE_CPU, in_slurm=True), "few_cpus",
            "sbatch --cpus-per-task=4", id="SLURM binds the job",
        ),
        pytest.param(story(SLOW_DECODE, STARVED, **ONE_CPU), "few_cpus", "taskset --cpu-list 0-3 ", id="affinity"),
        pytest.param(
            story(SLOW_DECODE, STARVED, **ONE_CPU | {"cpu_limits": {"affinity": 4, "cgroup quota": 1}}),
            "few_cpus", "docker run --cpus=4", id="a quota",
        ),
        pytest.param(
            story({"gpu_beside_loader": 200.0, "full_warm": 195.0, "full_cold": 195.0}, num_workers=1), "contention",
            "pack", id="one worker less is none",
        ),
        # The GPU and the training process
        pytest.param(story(dict.fromkeys(ON_GPU, 120.0), gpu=OTHERS), "shared_gpu", "CUDA_VISIBLE_", id="shared"),
        pytest.param(story(gpu=OTHERS), "healthy", "", id="an idle notebook on the GPU"),
        pytest.param(
            story(dict.fromkeys(ON_GPU, 200.0), others_cpus=1.5), "busy_neighbour", "top", id="busy CPUs"
        ),
        pytest.param(
            story(dict.fromkeys(ON_GPU, 200.0), config={"callbacks": {"acceleration": {"cuda_graph": True}}}),
            "launch_bound", "imagenet-opt tune", id="no second kind of CUDA graphs",
        ),
        pytest.param(
            story({"copy": 640.0, "full_warm": 210.0, "full_cold": 210.0}, config={"data": {"copies": "pinned"}}),
            "slow_copy", "data.copies=ahead", id="copies that are not made ahead",
        ),
        pytest.param(
            story(SLOW_RUN, {"checkpoint": 0.15}, config=SAVES),
            "checkpoint_stall", "callbacks.checkpoint.every_n_steps=null", id="checkpoints by time",
        ),
        pytest.param(
            story({"loader_cold": 100.0, "decode_all": 100.0, "full_cold": 76.0}, {"fetch": 0.32}, num_workers=0,
                  prefetch_factor=0, curves={"workers": ((0.0, 100.0), (4.0, 390.0))}),
            "few_workers", "data.num_workers=4", id="without workers",
        ),
    ],
)  # fmt: skip
def test_the_evidence_gives_the_cause_and_a_key_in_its_remedy(run: Evidence, cause: str, remedy: str) -> None:
    diagnosis = judge(run)
    assert diagnosis.cause == cause, [finding for finding in diagnosis.findings if finding.fired]
    assert remedy in " ".join(text for _, text in diagnosis.explanation)
    if diagnosis.measured >= diagnosis.expected:
        assert cause != "unexplained"


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
    assert gain(STORIES["contention"]) == pytest.approx(320 / 195)
    assert gain(STORIES["slow_decode"]) is None
    packed = PackForecast("for=176", 2.0, 0.4)
    finding = finding_of("slow_decode", story(SLOW_DECODE, STARVED, pack=packed))
    assert finding.gain == pytest.approx(2 * 148 / 139, rel=0.01) and finding.commands[0].endswith(" for=176")
    assert gain(story(**LAZY_BUT_TOUCHED)) == pytest.approx(316 / (64 / 0.3)), "the first epoch"
    assert gain(story(**RAM_FOR_ALL, bound="latency", touches=EAGER)) == pytest.approx(310 / 58)
    assert gain(STORIES["cold_cache"]) == pytest.approx(310 / 58)
    assert gain(STORIES["cache_too_small"]) == pytest.approx(310 / (58 / 0.6))
    # A faster GPU, with 4 CPUs: 32 images take 0.01 s of one, an image 4/1500 s.
    assert gain(STORIES["healthy"]) == pytest.approx(4 / (0.01 / 32 + 4 / 1500) / 316)
    assert gain(story({"copy_overlapped": 500.0})) == pytest.approx(500 / 316), "not that of the copy alone"


def test_training_and_loading_share_the_cpus() -> None:
    """4 CPUs; a step of 32 images takes 0.16 s of one, an image 4/400 s: 1/200 + 1/100 s together."""
    run = story({"decode_all": 400.0}, facts={"gpu": {"main_cpu_seconds": 0.16}})
    assert run.cpu_rate == pytest.approx(4 / (1 / 200 + 1 / 100))
    waiting = story({"copy": 640.0}, config={"data": {"copies": "pinned"}})
    assert waiting.expected_rate == pytest.approx(1 / (1 / 320 + 1 / 640))
    assert story(num_workers=0).expected_rate == pytest.approx(1 / (1 / 320 + 1 / 1400))


def test_nothing_in_effect_is_advised() -> None:
    saves = {"checkpoint": {"every_n_steps": None}}
    config = {"data": {"num_workers": "auto", "shuffle": "block"}, "callbacks": saves, "on": True}
    same = ("data.num_workers=4", "data.shuffle=block", "callbacks.checkpoint.every_n_steps=null", "on=true")
    others = ("data.num_workers=3", "data.shuffle=global", "callbacks.checkpoint.every_n_steps=8")
    assert changing(story(config=config), *same, *others) == others


def test_what_cannot_be_judged_says_why() -> None:
    unrated = story(rated_images_per_second=None, rated_evidence="of other settings (precision)")
    assert finding_of("slow_gpu", unrated).evidence == "of other settings (precision)"
    assert finding_of("launch_bound", story(no_kernels="no kernel was recorded")).fired is None
    assert finding_of("launch_bound", story(gpu=OTHERS)).fired is None
    few = replace(LAZY, lazy=None, evidence="2 requests only")
    assert "2 requests only" in finding_of("lazy_mount", story(SLOW_STORAGE, READING, touches=few)).evidence


def test_a_text_never_contradicts_the_rates() -> None:
    """Of a number of workers that did not run; of a storage that gives more than the loader takes."""
    workers = finding_of("slow_decode", story(**HYPER_THREADS)).evidence
    assert "8 loader workers decode 152 img/s" in workers and "16 usable CPUs would decode 182" in workers
    run = open_100_ms()
    assert judge(run).measured > judge(run).expected and run.storage_bound == "latency"
    assert "110 ms" in finding_of("storage_latency", run).evidence


def test_the_local_cache_serves_what_the_storage_gives_in_time() -> None:
    filled = of_url(0.9, 0.9)
    assert not filled.is_cold and judge(filled).measured == 310
    assert judge(of_url(0.5)).sentence == "Storage-bound: about 116 img/s in the first epoch, 310 in later ones."
