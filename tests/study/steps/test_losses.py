import math
from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.study.result_cache import ResultCache
from imagenet_opt.study.steps import speeds as measuring
from imagenet_opt.study.steps.losses import Losses, Parity, measure_losses, parity
from imagenet_opt.study.steps.speeds import Speed, Speeds
from tests.study.turns import Processes, Words, announced, steps_study

FUSED, MIXED, FREED = "optimizer.fused=true", "callbacks.mixing.mode='on'", "model.set_to_none=true"
STEPS: list[dict[str, Any]] = [
    {"name": "fused", "overrides": [FUSED]},
    {"name": "mixing", "overrides": [MIXED], "other_loss": "mixed labels"},
    {"name": "freed", "overrides": [FREED]},
]
SEEDS = [[2.0, 1.0], [2.3, 1.4], [2.0, 1.2]]
LEVELS = {FUSED: 0.15, MIXED: 5.0, FREED: 0.15, "seed=1": 0.1, "seed=2": 0.2}


def curve(words: Words) -> list[float]:
    """Two steps that stay within what seeds differ by, 0.2, but not both together."""
    level = sum(LEVELS.get(word, 0.0) for word in words)
    return [2.0 + level, 1.0 + level]


def losses_of(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: Processes,
    steps: list[dict[str, Any]],
    **turns: list[Speed],
) -> Losses:
    """Of a study in which these turns were measured."""
    monkeypatch.setattr(measuring, "call_isolated", processes)
    study = steps_study(folder, steps, parity_steps=10)
    speeds = Speeds(study.rows, {"start": [processes.speed(())]} | turns)
    return measure_losses(study, speeds, ResultCache(folder), announced)


def compared(folder: Path, monkeypatch: pytest.MonkeyPatch, failing: str = "-") -> tuple[Losses, Processes]:
    processes = Processes(curve=curve, fails=lambda words, number: failing in words)
    return losses_of(folder, monkeypatch, processes, STEPS), processes


@pytest.mark.slow
def test_each_loss_is_compared_with_that_without_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not with the start's, from which the mixed one is far away."""
    losses, processes = compared(tmp_path, monkeypatch)
    same = Parity(pytest.approx(0.15), pytest.approx(0.2))  # type: ignore[arg-type]
    assert losses.parities == {"fused": same, "mixing": "mixed labels", "freed": same}
    assert len(processes.jobs) == 6, "three seeds of the start, and each row once"
    said = capsys.readouterr().err
    assert said == "comparing losses trains 10 steps 6 times; --parity 0 leaves it out\n", "how long is not known"
    _, again = compared(tmp_path, monkeypatch)
    assert not again.jobs, "what was trained is kept"
    assert not capsys.readouterr().err, "and takes no time"


def test_a_start_that_fails_leaves_nothing_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    losses, processes = compared(tmp_path, monkeypatch, "seed=0")
    reason = "not compared, as start failed: out of memory"
    assert losses.parities == {"fused": reason, "mixing": "mixed labels", "freed": reason}
    assert len(processes.jobs) == 1


def test_a_row_without_a_loss_to_compare_with_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    losses, processes = compared(tmp_path, monkeypatch, MIXED)
    assert losses.parities["freed"] == "not compared, as mixing failed: out of memory"
    assert isinstance(losses.parities["fused"], Parity)
    assert len(processes.jobs) == 5, "what it would be compared with is tried once, itself not at all"


def test_a_row_whose_training_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None) -> None:
    losses, _ = compared(tmp_path, monkeypatch, FREED)
    assert losses.parities["freed"] == "failed: out of memory"


def test_nothing_is_trained_where_no_loss_can_be_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    processes = Processes()
    losses = losses_of(tmp_path, monkeypatch, processes, STEPS[1:2])
    assert losses.parities == {"mixing": "mixed labels"} and not processes.jobs


def test_the_time_that_is_told_has_the_start_of_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 steps of 4 images at 500 a second are 0.08 s; a turn times twice 0.1 s, the rest of it is its start."""
    processes = Processes(curve=curve)
    start = [processes.speed(()) | {"turn_seconds": taken} for taken in (12.2, 10.2, 11.2)]
    fused = [processes.speed(()) | {"turn_seconds": 15.2}]
    losses_of(tmp_path, monkeypatch, processes, STEPS[:1], start=start, fused=fused)
    assert "10 steps 4 times, about 48.3 s with the start of each process;" in capsys.readouterr().err


def test_a_curve_nearer_than_the_seeds_are_to_each_other_agrees() -> None:
    found = parity([7.1, 1.1], [7.0, 1.0], SEEDS)
    assert found.distance == pytest.approx(0.1)
    assert found.spread == pytest.approx(math.sqrt((0.3**2 + 0.4**2) / 2))
    assert found.agrees and str(found) == "same: 0.100, seeds 0.354"


def test_a_curve_farther_away_is_told() -> None:
    assert str(parity([3.0, 2.0], SEEDS[0], SEEDS)) == "DIFFERS: 1.000, seeds 0.354"


def test_a_loss_that_is_not_finite_never_agrees() -> None:
    found = parity([2.0, math.nan], SEEDS[0], SEEDS)
    assert not found.agrees and str(found) == "the loss is not finite"


def test_one_seed_has_no_spread() -> None:
    with pytest.raises(ValueError, match="1 seeds have no spread"):
        parity([1.0], [1.0], SEEDS[:1])
