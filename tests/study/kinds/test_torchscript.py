from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_opt.measure.stats.rounds import Rounds, TurnFailed
from imagenet_opt.probe.isolated import call_isolated
from imagenet_opt.study.kinds import torchscript
from imagenet_opt.study.kinds.synthetic_step import subject_of
from imagenet_opt.study.kinds.torchscript import EAGER, WAYS, Found, Job, measure, table_of
from tests.study.studies import TINY, small_request

CPU = (*TINY, "trainer.accelerator=cpu")
TRACE, COMPILE, BOTH = "torch.jit.trace", "torch.compile", "torch.compile of torch.jit.script"


def times(seconds: float) -> list[Found]:
    return [Found(seconds + i / 1000, ready_seconds=9.0 - i, first_loss=6.9, again=i > 0) for i in range(6)]


def test_forms_beside_eager() -> None:
    rounds = Rounds(
        {EAGER: times(1.0), TRACE: times(1.0), COMPILE: times(0.499), BOTH: []}, {BOTH: "RuntimeError: no."}
    )
    table = table_of(rounds, subject_of(CPU))
    rows = {row[0]: row for row in table.rows}
    assert rows[EAGER][3:6] == (None, None, None)
    assert rows[TRACE][5] == "no difference"
    assert rows[COMPILE][5] == "faster"
    assert rows[COMPILE][6:8] == (9.0, 6.0)  # the first process, and the median of those after it
    assert rows[BOTH][1:] == (None,) * 8
    assert any(
        note.startswith(f"{BOTH} failed with torch") and note.endswith(" RuntimeError: no.") for note in table.notes
    )
    assert any("fastest form here is torch.compile, 2.00 times" in note for note in table.sentences)
    assert table.plots[0].series[0].x == (EAGER, TRACE, COMPILE)


def test_a_resumed_study_knows_which_processes_had_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops at the start of the second of three rounds; the compiled code of the first round is deleted."""
    calls = 0

    def compiling(function: str, job: Job, *, limit_seconds: float, environment: dict[str, str]) -> dict[str, float]:
        nonlocal calls
        calls += 1
        if calls == len(WAYS) + 1:
            raise KeyboardInterrupt
        code = Path(environment["TORCHINDUCTOR_CACHE_DIR"], "code")
        ready = 1.0 if code.exists() else 9.0
        code.touch()
        return {"seconds": 0.5, "ready_seconds": ready, "first_loss": 6.9}

    monkeypatch.setattr(torchscript, "call_isolated", compiling)
    request = replace(small_request("torchscript", tmp_path, *CPU), repeats=3)
    with pytest.raises(KeyboardInterrupt):
        torchscript.run(request)
    (table,) = torchscript.run(request)
    assert calls == 3 * len(WAYS) + 1
    assert [row[6:8] for row in table.rows] == [(9.0, 1.0)] * len(WAYS)


def test_without_gain_or_without_eager_a_note_says_so() -> None:
    table = table_of(Rounds({EAGER: times(1.0), TRACE: times(1.0)}), subject_of(CPU))
    assert "No form is certain to be faster than eager here." in table.sentences
    table = table_of(Rounds({EAGER: [], TRACE: times(1.0)}, {EAGER: "killed by signal 9"}), subject_of(CPU))
    assert table.rows[1][1] == pytest.approx(1002.5) and table.rows[1][3:6] == (None,) * 3
    assert "No form could be compared with eager here." in table.sentences


@pytest.mark.slow
def test_a_separate_process_measures_a_form_or_fails() -> None:
    subject = subject_of(CPU)
    function = f"{measure.__module__}.measure"
    eager, traced = (call_isolated(function, Job(subject, way, 0.01)) for way in (EAGER, TRACE))
    assert traced["first_loss"] == pytest.approx(eager["first_loss"], rel=1e-4)
    assert traced["seconds"] > 0
    assert BOTH in WAYS
    try:  # torch 2.13 and later refuse, earlier ones run it as it is
        assert call_isolated(function, Job(subject, BOTH, 0.01))["first_loss"] == pytest.approx(
            eager["first_loss"], rel=1e-4
        )
    except TurnFailed as error:
        assert "torch.compile does not support compiling torch.jit.script" in str(error)
