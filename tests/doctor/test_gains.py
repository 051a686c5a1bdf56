"""Predicted gains of the environment's remedies."""

from dataclasses import replace

import pytest

from imagenet_opt.doctor.diagnosis import Finding
from imagenet_opt.doctor.evidence import Evidence
from tests.doctor.diagnoses import change
from tests.doctor.stories import STORIES, finding_of

NOT_THE_LIMIT = ("slow_mount", "page_cache", "mount_options", "lustre_limits", "cpu_limits", "gpu_link")
UNRATED = change(STORIES["slow_gpu"], facts=replace(STORIES["slow_gpu"].facts, rated_images_per_second=None))


@pytest.mark.parametrize(
    ("run", "rule", "gain"),
    [
        *((STORIES["healthy"], rule, 1.0) for rule in NOT_THE_LIMIT),
        (STORIES["storage_latency"], "slow_mount", 318 / 58),  # the next limit
        (STORIES["few_cpus"], "cpu_limits", 320 / 139),  # 4 CPUs instead of 1, but the GPU trains 320 images/s
        (STORIES["slow_gpu"], "gpu_clocks", 320 / 120),
        (STORIES["storage_latency"], "mount_options", None),  # no experiment measures these
        (UNRATED, "gpu_clocks", None),
        (STORIES["healthy"], "channels_last", None),
    ],
)
def test_the_experiments_predict_the_gain_of_the_environment(run: Evidence, rule: str, gain: float | None) -> None:
    finding = Finding(rule, True, "the evidence", environment=True)
    assert finding_of(rule, replace(run, environment=(finding,))).gain == (gain and pytest.approx(gain))
