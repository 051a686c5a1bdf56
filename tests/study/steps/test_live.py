"""Whoever waits for a study sees what is measured, what is known already, and how long it takes."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from imagenet_opt.study.steps.live import live, seconds_left
from imagenet_opt.study.steps.outcome import Outcome
from imagenet_opt.study.steps.plan import Plan, StepsFile
from tests.study.studies import small_request, speed

NUM_STEPS = 16


@pytest.fixture
def outcome() -> Outcome:
    steps = [{"name": f"step {i}, with a long name that no column holds"} for i in range(NUM_STEPS)]
    file = StepsFile.model_validate({"order": "alone", "steps": steps})
    request = replace(small_request("ladder", Path()), repeats=4)
    return Outcome(Plan(file, (), batch_size=64, has_gpu=False, mixed="32-true"), request, cold=True)


def measure(outcome: Outcome, num_rounds: int) -> None:
    for place, row in enumerate(outcome.plan.rows):
        outcome.speeds[row.name] = [speed(1000 + place, 100 + i) for i in range(num_rounds)]


def test_a_small_terminal_shows_what_is_measured_and_all_rows(outcome: Outcome) -> None:
    measure(outcome, 2)
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=24, color_system=None)
    with live(outcome, console) as announce:
        before = screen.tell()
        announce("round 3 of 4: [start]")
        frame = screen.getvalue()[before:]
    assert "round 3 of 4: [start]" in frame
    assert all(f"step {i}, with" in frame for i in range(NUM_STEPS)) and "1.01 x" in frame


def test_gaps_are_told_once_and_before_the_second_turn(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    with live(outcome, Console(file=StringIO())) as announce:
        announce("round 1 of 4: start")
        outcome.speeds["start"] = [speed(1000, 100, step_seconds=0.1, kernel_seconds=0.05)]
        announce("round 1 of 4: step 0")
        announce("round 1 of 4: step 1")
    first, said, *turns = capsys.readouterr().err.splitlines()
    assert first.startswith("measuring: round 1 of 4: start, 0.0 s so far")
    assert "closing the gaps gains 2.00 x at most" in said
    assert [line.partition(",")[0] for line in turns] == [f"measuring: round 1 of 4: step {i}" for i in range(2)]


def test_the_rest_is_reckoned_from_the_last_round(outcome: Outcome) -> None:
    first, *others = (row.name for row in outcome.plan.rows)
    outcome.speeds[first] = [speed(1, 1)]
    assert seconds_left(outcome, [9.0]) is None  # the others are not known
    measure(outcome, 2)
    outcome.failures[others[0]] = "out of memory"
    del outcome.speeds[others[0]]
    taken = [100.0] * (NUM_STEPS + 1) + [10.0] * NUM_STEPS  # 16 rows go on; the first round compiled
    assert seconds_left(outcome, taken) == pytest.approx(2 * NUM_STEPS * 10.0)
    measure(outcome, 4)
    assert seconds_left(outcome, taken) is None


def test_a_row_that_fails_is_told_as_it_happens(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    with live(outcome, Console(file=StringIO())) as announce:
        announce("round 1 of 4: start")
        outcome.failures["step 0"] = "compile_mode='maxi' is none"
        announce("round 1 of 4: step 1")
        announce("round 1 of 4: step 2")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4 and said[1] == "step 0 failed: compile_mode='maxi' is none"
