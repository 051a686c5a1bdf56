"""The checks before any experiment, for data whose folder is named by `~` and links."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from imagenet_opt.config.compose import composed
from imagenet_opt.doctor.first_look import check_machine, facts_of_run, used_dtypes
from imagenet_opt.probe.testbed import Testbed
from tests.conftest import write_images

SMALL = ("data.batch_size=8", "data.image_size=32", "data.num_workers=1", "trainer.accelerator=cpu")


@pytest.fixture
def testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Testbed:
    """~/set/train is a link to a bucket."""
    home, bucket = tmp_path / "home", tmp_path / "bucket"
    (home / "set").mkdir(parents=True)
    write_images(bucket / "set", num_classes=3, per_class=40)
    for split in ("train", "val"):
        (home / "set" / split).symlink_to(bucket / "set" / split)
    mounts = [
        SimpleNamespace(device="/dev/vda", mountpoint="/", fstype="ext4", opts="rw,relatime"),
        SimpleNamespace(device="s3fs", mountpoint=str(bucket), fstype="fuse.s3fs", opts="rw,relatime"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    monkeypatch.setenv("HOME", str(home))
    model = ("model.name=test_resnet", "trainer.precision=bf16-true")
    testbed_of_link = Testbed(composed(("data.root='~/set'", f"data.cache_dir={tmp_path}/cache", *model, *SMALL)))
    testbed_of_link.samples.read_few()
    return testbed_of_link


def test_every_check_answers_once_and_names_the_storage_of_the_files(testbed: Testbed) -> None:
    checks = check_machine(testbed)
    findings = {finding.rule: finding for finding in checks}
    assert len(findings) == len(checks) >= 10 and all(finding.evidence for finding in checks)
    assert all(finding.remedy for finding in checks if finding.fired)
    assert findings["slow_mount"].fired and "object storage" in findings["slow_mount"].evidence
    assert findings["slow_mount"].commands == ("imagenet-opt pack 'data.root=~/set' out=/local/disk/packed",)


def test_a_slurm_job_is_recognised(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert facts_of_run(testbed).in_slurm is False
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert facts_of_run(testbed).in_slurm is True


def test_a_network_in_16_bits_has_no_float32_convolutions(
    testbed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, dtypes = used_dtypes(testbed)
    assert words == "bf16-true"
    assert dtypes["convolution bfloat16"] > 0 and dtypes["convolution float32"] == 0
