"""What mending the environment brings, where the experiments tell."""

from dataclasses import replace

import pytest

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence
from imagenet_opt.doctor.verdict import judge
from tests.doctor.diagnoses import change
from tests.doctor.stories import STORIES


def gain(run: Evidence, rule: str) -> float | None:
    found = judge(replace(run, environment=(Finding(rule, True, "it is so", environment=True),)))
    return next(one.gain for one in found.findings if one.rule == rule and one.environment)


@pytest.mark.parametrize(
    "rule", ["slow_mount", "page_cache", "mount_options", "lustre_limits", "cpu_limits", "gpu_link"]
)
def test_what_is_not_the_limit_brings_nothing(rule: str) -> None:
    assert gain(STORIES["healthy"], rule) == 1.0


def test_data_nearby_brings_what_the_next_limit_allows() -> None:
    assert gain(STORIES["storage_latency"], "slow_mount") == pytest.approx(318 / 58)


def test_all_cpus_bring_as_many_times_as_much_at_most() -> None:
    """4 of the machine's 4 instead of 1, but the GPU takes 320 images/s, and 139 were measured."""
    assert gain(STORIES["few_cpus"], "cpu_limits") == pytest.approx(320 / 139)


def test_a_gpu_of_its_kind_is_known() -> None:
    assert gain(STORIES["slow_gpu"], "gpu_clocks") == pytest.approx(320 / 120)


def test_what_no_experiment_tells_is_not_made_up() -> None:
    assert gain(STORIES["storage_latency"], "mount_options") is None
    unknown = change(STORIES["slow_gpu"], facts=replace(STORIES["slow_gpu"].facts, rated_images_per_second=None))
    assert gain(unknown, "gpu_clocks") is None
    assert gain(STORIES["healthy"], "channels_last") is None
