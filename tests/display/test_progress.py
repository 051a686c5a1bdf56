"""Progress that a command prints."""

import re

import pytest

from imagenet_opt.display import progress


def test_each_tenth_has_its_rate_and_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, *(float(second) for second in range(10, 50, 10))])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(now))
    with progress.progress("reading", "files") as show:
        for done in (100, 105, 500, 1000):
            show(done, 1000, num_bytes=2_000_000 * done)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "reading: 100 of 1000 files, 10 files/s, 20.0 MB/s, 90.0 s left",
        "reading: 500 of 1000 files, 17 files/s, 33.3 MB/s, 30.0 s left",
        "reading: 1000 of 1000 files, 25 files/s, 50.0 MB/s",
    ]
    assert not re.search(r"nan|inf", " ".join(lines))
