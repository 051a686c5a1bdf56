from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.study.result_cache import Kept
from imagenet_opt.study.steps import isolated_turns
from imagenet_opt.study.steps.losses import compare_losses
from imagenet_opt.study.steps.outcome import Outcome
from imagenet_opt.study.steps.parity import Parity
from tests.study.turns import Processes, Words, announced, steps_outcome

FUSED, MIXED, FREED = "optimizer.fused=true", "callbacks.mixing.mode='on'", "model.set_to_none=true"
STEPS: list[dict[str, Any]] = [
    {"name": "fused", "overrides": [FUSED]},
    {"name": "mixing", "overrides": [MIXED], "other_loss": "mixed labels"},
    {"name": "freed", "overrides": [FREED]},
]
LEVELS = {FUSED: 0.15, MIXED: 5.0, FREED: 0.15, "seed=1": 0.1, "seed=2": 0.2}


def curve(words: Words) -> list[float]:
    """Two steps that stay within what seeds differ by, 0.2, but not both together."""
    level = sum(LEVELS.get(word, 0.0) for word in words)
    return [2.0 + level, 1.0 + level]


def compared(folder: Path, monkeypatch: pytest.MonkeyPatch, failing: str = "-") -> tuple[Outcome, Processes]:
    processes = Processes(curve=curve, fails=lambda words, number: failing in words)
    monkeypatch.setattr(isolated_turns, "call_apart", processes)
    outcome = steps_outcome(folder, STEPS, parity_steps=10)
    outcome.speeds["start"] = [processes.speed(())]
    compare_losses(outcome, Kept(folder), announced)
    return outcome, processes


@pytest.mark.slow
def test_each_loss_is_compared_with_that_without_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not with the start's, from which the mixed one is far away."""
    outcome, processes = compared(tmp_path, monkeypatch)
    same = Parity(pytest.approx(0.15), pytest.approx(0.2))  # type: ignore[arg-type]
    assert outcome.parities == {"fused": same, "mixing": "mixed labels", "freed": same}
    assert len(processes.jobs) == 6, "three seeds of the start, and each row once"
    said = capsys.readouterr().err
    assert said == "comparing losses trains 10 steps 6 times; --parity 0 leaves it out\n", "how long is not known"
    _, again = compared(tmp_path, monkeypatch)
    assert not again.jobs, "what was trained is kept"
    assert not capsys.readouterr().err, "and takes no time"


def test_a_start_that_fails_leaves_nothing_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    outcome, processes = compared(tmp_path, monkeypatch, "seed=0")
    reason = "not compared, as start failed: out of memory"
    assert outcome.parities == {"fused": reason, "mixing": "mixed labels", "freed": reason}
    assert len(processes.jobs) == 1


def test_a_row_without_a_loss_to_compare_with_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    outcome, processes = compared(tmp_path, monkeypatch, MIXED)
    assert outcome.parities["freed"] == "not compared, as mixing failed: out of memory"
    assert isinstance(outcome.parities["fused"], Parity)
    assert len(processes.jobs) == 5, "what it would be compared with is tried once, itself not at all"


def test_a_row_whose_training_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None) -> None:
    outcome, _ = compared(tmp_path, monkeypatch, FREED)
    assert outcome.parities["freed"] == "failed: out of memory"


def test_nothing_is_trained_where_no_loss_can_be_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    processes = Processes()
    monkeypatch.setattr(isolated_turns, "call_apart", processes)
    outcome = steps_outcome(tmp_path, STEPS[1:2], parity_steps=10)
    outcome.speeds["start"] = [processes.speed(())]
    compare_losses(outcome, Kept(tmp_path), announced)
    assert outcome.parities == {"mixing": "mixed labels"} and not processes.jobs


def test_the_time_that_is_told_has_the_start_of_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 steps of 4 images at 500 a second are 0.08 s; a turn times twice 0.1 s, the rest of it is its start."""
    processes = Processes(curve=curve)
    monkeypatch.setattr(isolated_turns, "call_apart", processes)
    outcome = steps_outcome(tmp_path, STEPS[:1], parity_steps=10)
    outcome.speeds["start"] = [processes.speed(()) | {"turn_seconds": taken} for taken in (12.2, 10.2, 11.2)]
    outcome.speeds["fused"] = [processes.speed(()) | {"turn_seconds": 15.2}]
    compare_losses(outcome, Kept(tmp_path), announced)
    assert "10 steps 4 times, about 48.3 s with the start of each process;" in capsys.readouterr().err
