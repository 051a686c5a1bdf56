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


def test_a_terminal_shows_the_time_left_of_measurements_that_take_minutes(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = open_terminal(monkeypatch)
    with progress.announced(10) as announce:
        for number in range(4):
            announce(f"round {number} of 10: [start]")
            now[0] += 60.0
    assert "round 3 of 10: [start]" in screen.getvalue() and "3/10" in screen.getvalue()
    assert "0:07:00" in screen.getvalue(), "7 more of 60 s"


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


def test_a_long_description_leaves_room_for_the_clock_at_80_columns(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = open_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    with progress.announced(9, budget_seconds=90) as announce:
        announce("decoding from memory, all workers, with words up to the width of the terminal")
        now[0] += 5
        announce("decoding from memory, all workers, with words up to the width of the terminal")
    assert re.search(r"0:00:05.{0,12} of 90 s", screen.getvalue().replace("\x1b[0m", ""))


def test_a_slow_step_is_logged_each_minute(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress("packing", "files") as show:
        for done in range(1, 5):
            now[0] += 30.0
            show(done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", ")[2] for line in lines] == ["8.3 h left"] * 2


def test_a_measurement_is_announced_with_the_seconds_and_the_budget(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 12.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(now))
    with progress.announced(14, budget_seconds=90) as announce:
        announce("decoding")
    assert capsys.readouterr().err == "measuring: decoding (12 s of 90 s)\n"


def test_slow_storage_may_take_longer_than_the_budget(
    now: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.announced(14, budget_seconds=60) as announce:
        now[0] += 152
        announce("reading")
    assert capsys.readouterr().err == "measuring: reading (152 s, over the budget of 60 s)\n"
    screen = open_terminal(monkeypatch)
    with progress.announced(14, budget_seconds=60) as announce:
        now[0] += 152
        announce("reading")
    assert "0:02:32, over the budget of 60 s" in screen.getvalue()


def test_without_a_total_the_bar_shows_the_budget(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    screen = open_terminal(monkeypatch)
    with progress.announced(None, budget_seconds=600) as announce:
        announce("round 1: start")
        now[0] += 300
        announce("round 3, 4 of 10 rows are decided: compile")
    last = next(line for line in reversed(screen.getvalue().splitlines()) if "of 600 s" in line)
    last = last.replace("\x1b[0m", "")
    assert "4 of 10 rows are decided" in last and "0:05:00" in last
    assert [len(part) for part in re.findall(r"\x1b\[91m(━+)", last)] == [10], "half of the 20 columns"
