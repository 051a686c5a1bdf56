"""Progress that a command prints."""

import io
import re
import sys

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


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that all clocks show."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: seconds[0])
    monkeypatch.setattr("rich.console.monotonic", lambda: seconds[0])
    return seconds


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Make stderr a terminal. A fixture cannot, since pytest sets stderr again before a test runs."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_a_log_shows_the_time_left_of_measurements_that_take_minutes(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.announced(4) as announce:
        for name in "abcd":
            announce(name)
            now[0] += 60.0
    assert capsys.readouterr().err.splitlines() == [
        "measuring: a",
        *("measuring: b (3.0 min left)", "measuring: c (2.0 min left)", "measuring: d"),
    ]


def test_a_slow_step_is_logged_each_minute(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress("packing", "files") as show:
        for done in range(1, 5):
            now[0] += 30.0
            show(done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", ")[2] for line in lines] == ["8.3 h left"] * 2


def test_planned_measurements_show_the_expected_time(
    now: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second takes twice its 10 s, so the rest counts twice; the last takes longer than expected."""

    def measure() -> None:
        now[0] = 0.0
        with progress.announced(3, planned=(0.0, 10.0, 30.0)) as announce:
            for name, seconds in {"checking": 0, "reading": 20, "decoding": 95}.items():
                announce(name)
                now[0] += seconds

    measure()
    assert capsys.readouterr().err.splitlines() == [
        "measuring: checking (0 s of about 40 s)",
        "measuring: reading (0 s of about 40 s)",
        "measuring: decoding (20 s of about 80 s)",
    ]
    screen = open_terminal(monkeypatch)
    measure()
    text = re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())
    assert "0:01:55 of about 0:01:55" in text


def test_measurements_may_take_longer_than_the_budget(
    now: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.announced(None, budget_seconds=90) as announce:
        now[0] += 12
        announce("a round")
        now[0] += 140
        announce("another")
    lines = "measuring: a round (12 s of 90 s)\nmeasuring: another (152 s, over the budget of 90 s)\n"
    assert capsys.readouterr().err == lines
    screen = open_terminal(monkeypatch)
    with progress.announced(None, budget_seconds=90) as announce:
        now[0] += 152
        announce("another")
    assert "0:02:32, over the budget of 90 s" in screen.getvalue()
