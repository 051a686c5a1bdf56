"""The doctor on a real GPU."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from imagenet_opt.cli.doctor import main
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.doctor.diagnosis_file import read_diagnosis
from imagenet_opt.doctor.measurements import STAGES
from tests.doctor.stories import STORIES

pytestmark = pytest.mark.slow
SMALL = ("data=demo", "data.num_train=2000", "data.batch_size=32", "logger=csv")


def test_all_experiments_run_and_the_gpu_is_seen_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "doctor.json"
    main([*SMALL, "data.cache_dir=cache", "--budget=30s", f"--json={file}"])
    found = read_diagnosis(file)
    assert found.cause in STORIES and found.measurements.simulated is None
    assert found.measurements.ceilings.keys() == STAGES.keys()
    assert all(ceiling.images_per_second > 0 for ceiling in found.measurements.ceilings.values())
    assert 0 < found.measurements.busy_share <= 1
    findings = {finding.rule: finding for finding in found.findings}
    clocks = findings["gpu_clocks"]
    assert clocks.fired is None or "idle" not in clocks.evidence, "read while it computes"
    assert not found.measurements.failed
    assert json.loads(file.read_text())["machine"]["gpu"] != "none"


def test_a_profile_is_kept_for_rehearsals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf/rehearse").mkdir(parents=True)
    overrides = (*SMALL, "data.image_size=224", "model.name=resnet50", f"data.cache_dir={tmp_path}/cache")
    for entry in config_folder().iterdir():
        if entry.name != "rehearse":
            (tmp_path / "conf" / entry.name).symlink_to(entry)
    monkeypatch.setattr("imagenet_opt.config.overrides.config_folder", lambda: tmp_path / "conf")
    main([*overrides, "--budget=20s", "--record-profile"])
    (file,) = (tmp_path / "conf/rehearse").glob("*.yaml")
    profile = OmegaConf.load(file).callbacks.rehearsal
    assert profile.estimate is False and "doctor --record-profile" in profile.source
    assert profile.images_per_second > 10 and profile.copy_gb_per_second > 0.1
    assert 0 < profile.launch_seconds < 1
