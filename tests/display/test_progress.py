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


def test_a_slow_step_is_logged_each_minute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 30.0, 60.0, 90.0, 120.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(now))
    with progress.progress("packing", "files") as show:
        for done in range(1, 5):
            show(done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", ")[2] for line in lines] == ["8.3 h left"] * 2


@pytest.mark.parametrize(
    ("budget_seconds", "clocks"),
    [(0.0, ["", "", " (152 s)"]), (90.0, [f" ({second} s of about 90 s)" for second in (0, 12, 152)])],
)
def test_measurements_have_the_elapsed_time_beside_the_planned_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], budget_seconds: float, clocks: list[str]
) -> None:
    now = iter([0.0, 0.0, 12.0, 152.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(now))
    with progress.announced(3, budget_seconds=budget_seconds) as announce:
        for name in "abc":
            announce(name)
    expected = [f"measuring: {name}{clock}" for name, clock in zip("abc", clocks, strict=True)]
    assert capsys.readouterr().err.splitlines() == expected
