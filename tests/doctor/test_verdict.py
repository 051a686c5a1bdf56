"""The verdict on made-up measurements; for those of real runs, see test_recorded.py."""

from dataclasses import replace

import pytest

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence, evidence_of
from imagenet_opt.doctor.explanation import gap, least_stage
from imagenet_opt.doctor.verdict import CAUSES, RULES, Rule, conclude, judge
from tests.doctor.diagnoses import change
from tests.doctor.stories import SLOW_STORAGE, STORIES, finding_of, story

HEALTHY = "Healthy: the simulated a10g computes 99% of the time, 316 img/s."
UNEXPLAINED = "Unexplained: 200 of the 318 img/s that the stages alone allow."


@pytest.mark.parametrize("cause", STORIES)
def test_each_story_has_its_cause_and_no_other(cause: str) -> None:
    diagnosis = judge(STORIES[cause])
    assert diagnosis.cause == cause
    fired = [finding.rule for finding in diagnosis.findings if finding.fired]
    assert fired == ([] if cause in ("healthy", "unexplained") else [cause])
    assert judge(evidence_of(diagnosis)) == diagnosis, "the file of a diagnosis has all of its evidence"
    *parts, run = diagnosis.waterfall
    assert sum(part.seconds for part in parts) == pytest.approx(run.seconds)
    assert run.seconds == pytest.approx(32 / STORIES[cause].measured_rate)


def test_every_cause_has_a_story_and_a_rule_that_yields_to_earlier_rules_only() -> None:
    assert STORIES.keys() == CAUSES.keys()
    assert {rule.name for rule in RULES} == CAUSES.keys() - {"healthy", "unexplained"}
    earlier: set[str] = set()
    for rule in RULES:
        assert set(rule.unless) <= earlier, rule.name
        earlier.add(rule.name)


def test_a_rule_that_yields_has_not_fired_and_predicts_nothing() -> None:
    rule = next(rule for rule in RULES if rule.name == "few_workers")
    assert rule.look(STORIES["few_workers"]).fired
    finding = rule.look(STORIES["few_workers"], {"busy_neighbour"})
    assert finding.fired is False and finding.gain is None


@pytest.mark.parametrize(
    ("run", "gain", "stage", "sentence"),
    [
        (STORIES["storage_latency"], 318 / 58, "gpu_beside_loader", "Storage-bound: 58 of a possible 318 img/s."),
        # A faster GPU, with 4 CPUs: 32 images take 0.01 s of one, an image 4/1500 s. The copy gives 40000 images/s.
        (STORIES["healthy"], 4 / (0.01 / 32 + 4 / 1500) / 316, "decode_all", HEALTHY),
        # A faster GPU is limited by the copies while it computes, not by the 40000 images/s of the copy alone.
        (story({"copy_overlapped": 500.0}), 500 / 316, "copy_overlapped", HEALTHY),
        (STORIES["unexplained"], 318 / 200, "gpu_beside_loader", UNEXPLAINED),
    ],
)
def test_the_next_limit_gives_the_gain(run: Evidence, gain: float, stage: str, sentence: str) -> None:
    diagnosis = judge(run)
    assert diagnosis.next_gain == pytest.approx(gain)
    assert (diagnosis.next_stage, diagnosis.sentence) == (stage, sentence)


def test_without_observed_kernels_late_launches_are_not_judged() -> None:
    facts = replace(story().facts, no_kernels_reason="no kernel was recorded")
    finding = finding_of("launch_bound", change(STORIES["launch_bound"], facts=facts))
    assert finding.fired is None and finding.evidence == "no kernel was recorded"


def test_the_unexplained_share_is_a_number_and_no_cause_hides_it() -> None:
    assert judge(STORIES["unexplained"]).unexplained == pytest.approx(1 - 200 / 318)
    assert judge(STORIES["healthy"]).unexplained == pytest.approx(2 / 318)
    slower = judge(story(SLOW_STORAGE | {"full_cold": 42.0}, {"fetch": 0.7}, storage_bound="latency", lazy=False))
    assert slower.cause == "storage_latency"
    assert gap(slower) == "30% of the rate that the stages alone allow"
    assert str(gap(judge(STORIES["slow_logging"]))).endswith("this cause appears only in the full run")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_names_all_stages_that_it_needs(rule: Rule) -> None:
    """It needs only these measurements, and without one of them it is not checked. A key that is not on its list, such
    as a typo, raises KeyError."""
    run = story(machine_cpus=8, num_workers=2)
    keys = set(map(run.stage, rule.needs))
    ceilings = {name: ceiling for name, ceiling in run.ceilings.items() if name in keys}
    assert "not measured" not in rule.look(change(run, ceilings=ceilings)).evidence
    for key in keys:
        finding = rule.look(change(run, ceilings={name: ceilings[name] for name in keys - {key}}))
        assert finding.fired is None and finding.evidence.startswith("not measured: ")


def test_a_mistake_in_a_rule_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def misspelt(evidence: Evidence) -> Finding:
        return Finding("misspelt", bool(evidence.ceilings["gpuu"]), "")

    monkeypatch.setattr("imagenet_opt.doctor.verdict.RULES", (Rule(misspelt, ()),))
    with pytest.raises(KeyError, match="gpuu"):
        conclude(change(story(), facts=replace(story().facts, not_measured="the copy to the GPU")))


def test_the_slowest_stage_has_its_files_in_the_state_of_the_run() -> None:
    """Reading from memory is no part of a run from storage, however slow the rate from memory is."""
    slower = least_stage(judge(story({"storage_cached": 10.0, "loader_warm": 20.0})))
    assert slower == (
        "With files on storage the full run reaches 316 images/s; its slowest stage "
        "'GPU, while the loader runs' reaches 318 images/s."
    )
    faster = str(least_stage(judge(story({"loader_cold": 100.0}))))
    assert "but its stage 'loader, files on storage' reaches 100" in faster
    in_memory = str(least_stage(judge(story({"full_warm": 300.0}, cached_share=1.0))))
    assert in_memory.startswith("With files in memory")
