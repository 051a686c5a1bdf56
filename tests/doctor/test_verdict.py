"""The verdict on hand-made measurements; on those of real runs, see test_recorded.py."""

from dataclasses import replace

import pytest

from imagenet_opt.doctor.causes.cause import CAUSES
from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence, evidence_of
from imagenet_opt.doctor.explanation import gap, least_stage
from imagenet_opt.doctor.verdict import RULES, Rule, conclude, judge
from tests.doctor.diagnoses import change
from tests.doctor.stories import SLOW_STORAGE, STORIES, seen


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
