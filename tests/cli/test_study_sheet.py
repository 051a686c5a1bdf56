from pathlib import Path

import pytest

from imagenet_opt.cli.study_plan import Plan, StepsFile
from imagenet_opt.cli.study_request import Request
from imagenet_opt.cli.study_sheet import sheets
from imagenet_opt.cli.study_steps import Outcome
from imagenet_opt.cli.study_winners import why_not
from imagenet_opt.measure.parity import Parity


def speed(compute: float, full: float, **more: float) -> dict[str, float | None]:
    facts: dict[str, float | None] = {"busy": 0.5, "memory_gib": 2.0, "compile_seconds": None, "batch_size": 64.0}
    return facts | {"compute": compute, "full": full, "step_seconds": None, "kernel_seconds": None} | more


@pytest.fixture
def outcome() -> Outcome:
    steps = [{"name": name} for name in ("fast", "lossy", "slow", "broken")]
    file = StepsFile.model_validate({"order": "alone", "steps": steps})
    request = Request("mine", "Mine", "steps", {}, (), 4, 1.0, 10, 2.0, apply=False, folder=Path())
    found = Outcome(Plan(file, (), batch_size=64, has_gpu=False), request, cold=True)
    rounds = [1.0, 0.7, 1.05, 0.9]  # the machine's moods
    wobble = [1.0, 1.01, 0.99, 1.0]
    for name, times in {"start": 1.0, "fast": 1.5, "lossy": 1.4, "slow": 0.6}.items():
        mixed = zip(rounds, wobble if name == "fast" else wobble[::-1], strict=True)
        found.speeds[name] = [speed(1000 * times * mood * noise, 100 * mood) for mood, noise in mixed]
    found.failures["broken"] = "out of memory"
    found.parities = {"fast": Parity(0.1, 0.2), "lossy": Parity(0.3, 0.2), "slow": Parity(0.1, 0.2)}
    return found


def test_the_table_says_what_a_step_is_worth_and_what_holds_it_up(outcome: Outcome) -> None:
    (sheet,) = sheets(outcome)
    rows = {row[0]: row for row in sheet.texts()}
    assert rows["start"][1:5] == ["950", "-", "95", "-"]
    assert rows["fast"][2].startswith("1.50 x (1.4") and rows["fast"][2].endswith("faster")
    assert rows["fast"][4] == "1.00 x (1.00 to 1.00) no difference"
    assert rows["slow"][2].startswith("0.60 x") and rows["slow"][2].endswith("slower")
    assert rows["broken"][1] == "failed" and "broken failed: out of memory." in sheet.notes
    headings = [column.heading for column in sheet.columns]
    assert rows["start"][headings.index("M images per $")] == "0.2"  # 95 a second, 3600 seconds, 2 $
    assert rows["lossy"][headings.index("loss")] == "DIFFERS: 0.300, seeds 0.200"
    assert any(note.startswith("With fast the network alone does 1,42") and "doctor" in note for note in sheet.notes)


def test_launches_that_leave_no_gap_are_told_beforehand(outcome: Outcome) -> None:
    outcome.speeds["start"] = [speed(1000, 100, step_seconds=0.1, kernel_seconds=0.099)] * 4
    (sheet,) = sheets(outcome)
    assert any("a CUDA graph cannot matter" in note for note in sheet.notes)


def test_only_what_is_faster_somewhere_slower_nowhere_and_learns_the_same_is_kept(outcome: Outcome) -> None:
    reasons = {row.name: why_not(outcome, row) for row in outcome.plan.rows if row.step is not None}
    assert reasons["fast"] is None
    assert "another loss" in str(reasons["lossy"])
    outcome.parities["fast"] = "failed: the loss is NaN"
    assert why_not(outcome, outcome.plan.rows[1]) == "its loss was not compared (failed: the loss is NaN)"
    del outcome.parities["fast"]
    assert why_not(outcome, outcome.plan.rows[1]) == "its loss was not compared (--parity 0)"
    assert "slower" in str(reasons["slow"])
    assert reasons["broken"] == "failed"
