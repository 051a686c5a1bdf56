"""Whether a save ends within the notice of a spot machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagenet_opt.check.spot_notice import judge_spot_notice

MB = 10**6


def clock(*durations: float) -> Iterator[float]:
    """Times of a clock before and after each measured part."""
    now = 0.0
    for seconds in durations:
        yield now
        now += seconds
        yield now


@pytest.mark.parametrize(
    ("seconds", "level", "begins"),
    [
        (10, "ok", "55 of 120 s: 1 MB take 10.0 s to write and verify in "),  # 2 x 10 + 30 + 5
        (50, "warning", "135 of 120 s: "),
    ],
)
def test_the_time_of_two_saves_is_compared_with_the_notice(
    seconds: float, level: str, begins: str, tmp_path: Path
) -> None:
    ticks = clock(seconds)
    result = judge_spot_notice(MB, tmp_path / "runs/new", poll_seconds=5, clock=lambda: next(ticks))
    assert result.level == level and result.text.startswith(begins) and str(tmp_path) in result.text
    assert ("set hydra.run.dir on a local disk" in result.text) == (level == "warning")
    assert list(tmp_path.iterdir()) == [], "nothing stays"


def test_a_large_checkpoint_takes_longer_in_proportion(tmp_path: Path) -> None:
    ticks = clock(1)
    result = judge_spot_notice(4 * 64 * 2**20, tmp_path, poll_seconds=5, clock=lambda: next(ticks))
    assert result.text.startswith("43 of 120 s: 268 MB take 4.0 s to write")


def test_a_folder_that_takes_no_file_is_named_with_the_key() -> None:
    result = judge_spot_notice(MB, Path("/proc/runs"), poll_seconds=5)
    assert result.level == "warning" and result.text.startswith("/proc takes no checkpoint (")
    assert "hydra.run.dir" in result.text


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server on this machine."""
    boto3 = pytest.importorskip("boto3", reason='needs pip install "imagenet-opt[cloud]"')
    pytest.importorskip("obstore", reason='needs pip install "imagenet-opt[cloud]"')
    server = pytest.importorskip("moto.server", reason='needs pip install "moto[server]"')
    running = server.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    for name, value in {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    for name in names:
        monkeypatch.setenv(name, "test")
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="checkpoints")
    yield "checkpoints"
    running.stop()


def test_the_upload_to_the_mirror_counts(bucket: str, tmp_path: Path) -> None:
    ticks = clock(1, 20)
    mirror = f"s3://{bucket}/run"
    result = judge_spot_notice(MB, tmp_path, mirror, poll_seconds=5, clock=lambda: next(ticks))
    assert result.level == "ok"
    assert f"in {tmp_path} and 20.0 s to upload to {mirror}, twice" in result.text
    ticks = clock(1, 60)
    result = judge_spot_notice(MB, tmp_path, mirror, poll_seconds=5, clock=lambda: next(ticks))
    assert result.level == "warning" and "checkpoint.mirror in the region of the machine" in result.text

    import boto3

    assert boto3.client("s3").list_objects_v2(Bucket=bucket)["KeyCount"] == 0, "nothing stays"
    result = judge_spot_notice(MB, tmp_path, "s3://no-such-bucket/run", poll_seconds=5)
    assert result.level == "warning" and "checkpoint.mirror" in result.text and "bucket" in result.text
