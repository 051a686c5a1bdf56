"""The rules of the causes on made-up measurements, and on those of real runs: see suites/doctor/suite.py."""

import gzip
import json
import re
from pathlib import Path

import pytest

from imagenet_opt.doctor.causes import CAUSES, judge
from imagenet_opt.doctor.commands import changing
from imagenet_opt.doctor.diagnosis import WITHOUT_CAUSE
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.pack_forecast import PackForecast
from suites.doctor.cases import CASES
from suites.doctor.machines import MACHINES
from suites.doctor.simulated import summary, tallied
from suites.doctor.suite import tallied as tallied_runs
from tests.doctor import stories
from tests.doctor.stories import CASES_OF_RULES, STORIES, finding_of, of_url, story

DOCS = Path(__file__).parents[2] / "docs/doctor.md"
RECORDED = Path(__file__).with_name("recorded.jsonl.gz")
MOST_WRONG = 0.05
"""Of the runs of a case: on a shared machine, other processes sometimes slow down a run."""


def test_the_rules_name_the_known_causes_of_real_runs() -> None:
    rows = map(json.loads, gzip.decompress(RECORDED.read_bytes()).splitlines())
    tallies = tallied_runs((row.pop("case"), row) for row in rows)
    assert sum(tally.causes.total() for tally in tallies.values()) == 253
    for name, tally in tallies.items():
        wrong = [cause for cause in tally.causes.elements() if cause not in CASES[name].right]
        assert len(wrong) <= MOST_WRONG * tally.causes.total(), (name, wrong)


@pytest.mark.parametrize("cause", STORIES)
def test_each_story_has_its_cause(cause: str) -> None:
    diagnosis = judge(STORIES[cause])
    assert diagnosis.cause == cause and STORIES.keys() == {rule.name for rule in (*CAUSES, *WITHOUT_CAUSE)}
    *parts, run = diagnosis.waterfall
    assert sum(part.seconds for part in parts) == pytest.approx(run.seconds)
    assert run.seconds == pytest.approx(32 / STORIES[cause].measured_rate)
    if cause not in {rule.name for rule in WITHOUT_CAUSE}:
        assert finding_of(cause, STORIES[cause]).remedy


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
    assert gain(story(**stories.SLOW_READS, curves=stories.CURVE)) == pytest.approx(180 / 58), (
        "measured with more requests in flight"
    )
    assert gain(STORIES["slow_decode"]) is None
    packed = PackForecast("for=176", 2.0, 0.4)
    finding = finding_of("slow_decode", story(stories.SLOW_DECODE, stories.STARVED, pack=packed))
    assert finding.gain == pytest.approx(2 * 148 / 139, rel=0.01) and finding.commands[0].endswith(" for=176")
    assert gain(story(**stories.LAZY_BUT_TOUCHED)) == pytest.approx(316 / (64 / 0.3)), "the first epoch"
    assert gain(story(**stories.RAM_FOR_ALL, touches=stories.EAGER)) == gain(of_url()) == pytest.approx(310 / 58)
    assert gain(STORIES["cache_too_small"]) == pytest.approx(310 / (58 / 0.6))
    # A faster GPU, with 4 CPUs: 32 images take 0.01 s of one, an image 4/1500 s.
    assert gain(STORIES["healthy"]) == pytest.approx(4 / (0.01 / 32 + 4 / 1500) / 316)
    assert gain(story({"copy_overlapped": 500.0})) == pytest.approx(500 / 316), "not that of the copy alone"


def test_a_device_that_was_faster_beside_the_loader_is_not_promised_a_gain_by_faster_decoding() -> None:
    """The two measurements differ by chance then; a loader does not speed up the device."""
    run = story({"gpu": 300.0, "gpu_beside_loader": 320.0})
    assert run.device_beside(1e6) == run.device_beside(300.0) == pytest.approx(300)
    assert story({"gpu_beside_loader": 200.0}).device_beside(3000.0) > 200


def test_the_documentation_lists_the_causes_in_their_order() -> None:
    table = DOCS.read_text().partition("| cause | fires when")[2].partition("\n\n")[0]
    listed = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert ["healthy", *listed] == [WITHOUT_CAUSE[0].name, *(rule.name for rule in (*CAUSES, *WITHOUT_CAUSE[1:]))]


def test_no_gain_is_promised_beyond_the_storage_nor_the_launches() -> None:
    few = judge(CASES_OF_RULES["few workers, but slower storage"][0])
    assert few.next_rate == pytest.approx(160) and few.next_stage == "storage_cold"
    healthy = judge(story(facts={"gpu": {"main_cpu_seconds": 0.08}}))
    assert healthy.next_rate == pytest.approx(32 / 0.08) and healthy.next_stage == "main process"


def test_the_rules_are_right_on_simulated_machines() -> None:
    """Of `python -m suites.doctor.simulated`, one draw of each machine."""
    found = summary(tallied(MACHINES, draws=1))
    assert found["right"] >= 72 and found["without gain"] == 0
    assert found["good gains"] >= 0.9 * found["gains"]


def test_nothing_in_effect_is_advised() -> None:
    saves = {"checkpoint": {"every_n_steps": None, "every_minutes": 15.0}}
    config = {"data": {"num_workers": "auto", "shuffle": "block"}, "callbacks": saves, "on": True}
    same = ("data.num_workers=4", "data.shuffle=block", "callbacks.checkpoint.every_n_steps=null", "on=true")
    others = ("data.num_workers=3", "data.shuffle=global", "callbacks.checkpoint.every_n_steps=8")
    assert changing(story(config=config), *same, "callbacks.checkpoint.every_minutes=15", *others) == others
