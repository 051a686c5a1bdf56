from dataclasses import dataclass
from pathlib import Path

import pytest
from imagenet_opt.study.result_cache import FILE, ResultCache


@dataclass(frozen=True)
class Job:
    overrides: tuple[str, ...]


def test_stored_results_are_not_measured_again_even_after_an_incomplete_line(tmp_path: Path) -> None:
    reported: list[str] = []
    first = ResultCache(tmp_path)
    first.report = reported.append
    assert first.take(Job(("a",)), 0, lambda: "a0", label="first a") == "a0"
    assert first.take(Job(("a",)), 1, lambda: "a1", label="second a") == "a1"
    with (tmp_path / FILE).open("a") as file:
        file.write('{"key": "half')
    again = ResultCache(tmp_path)
    again.report = reported.append
    assert again.take(Job(("a",)), 0, pytest.fail, label="first a") == "a0"
    assert again.take(Job(("b",)), 0, lambda: "b0", label="b") == "b0"
    assert ResultCache(tmp_path).take(Job(("b",)), 0, pytest.fail) == "b0"
    assert reported == ["first a", "second a", "b"], "only new measurements are reported"


def test_another_machine_version_or_configuration_is_another_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ResultCache(tmp_path).take(Job(()), 0, lambda: 1, config={"lr": 0.1}) == 1
    assert ResultCache(tmp_path).take(Job(()), 0, lambda: 2, config={"lr": 0.2}) == 2
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert ResultCache(tmp_path).take(Job(()), 0, lambda: 3, config={"lr": 0.1}) == 3
    monkeypatch.setattr("imagenet_opt.machine.version", lambda name: "1000")
    assert ResultCache(tmp_path).take(Job(()), 0, lambda: 4, config={"lr": 0.1}) == 4


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_the_number_of_kept_turns_is_printed_at_stop_and_resume(
    tmp_path: Path, stop: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    first = ResultCache(tmp_path)
    first.take(Job(("no turn",)), 0, lambda: 1)
    first.set_subject({"seconds": 8})
    with pytest.raises(stop), first.report_if_stopped():
        raise stop
    nothing = "stopped; no measurement was complete: run the same command again to begin again\n"
    assert capsys.readouterr().err == nothing
    first.take(Job(()), 0, lambda: 1)
    with pytest.raises(stop), first.report_if_stopped():
        first.take(Job(()), 1, lambda: 1)
        raise stop
    assert (
        capsys.readouterr().err
        == f"stopped; 2 measurements are kept in {tmp_path}: run the same command again to resume\n"
    )
    again = ResultCache(tmp_path)
    again.set_subject({"seconds": 8})
    assert (again.report_resumed(), capsys.readouterr().err) == (
        2,
        "resuming: 2 measurements are kept from an earlier run\n",
    )
    again.set_subject({"seconds": 9})
    assert again.report_resumed() == 0
    assert "other --seconds, another configuration or version: all are repeated" in capsys.readouterr().err


def test_a_new_study_prints_nothing_about_kept_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ResultCache(tmp_path)
    cache.take(Job(("no turn",)), 0, lambda: 1)
    cache.set_subject({})
    cache.take(Job(()), 0, lambda: 1)
    assert cache.report_resumed() == 0, "this process measured it"
    assert capsys.readouterr().err == ""
