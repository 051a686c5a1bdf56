from dataclasses import dataclass
from pathlib import Path

import pytest

from imagenet_opt.study.result_cache import FILE, ResultCache


@dataclass(frozen=True)
class Job:
    overrides: tuple[str, ...]


def test_what_was_measured_is_not_measured_again_even_after_a_torn_line(tmp_path: Path) -> None:
    measured: list[str] = []

    def measure(name: str) -> str:
        measured.append(name)
        return name

    first = ResultCache(tmp_path)
    assert first.take(Job(("a",)), 0, lambda: measure("a0")) == "a0"
    assert first.take(Job(("a",)), 1, lambda: measure("a1")) == "a1"
    with (tmp_path / FILE).open("a") as file:
        file.write('{"key": "half')
    again = ResultCache(tmp_path)
    assert again.take(Job(("a",)), 0, lambda: measure("not again")) == "a0"
    assert again.take(Job(("b",)), 0, lambda: measure("b0")) == "b0"
    assert ResultCache(tmp_path).take(Job(("b",)), 0, lambda: measure("not again")) == "b0"
    assert measured == ["a0", "a1", "b0"]


def test_other_versions_are_another_measurement(tmp_path: Path) -> None:
    first, other = ResultCache(tmp_path), ResultCache(tmp_path)
    other.machine = {**other.machine, "versions": {"torch": "another"}}
    assert first.take(Job(()), 0, lambda: 1) == 1
    assert other.take(Job(()), 0, lambda: 2) == 2


def test_another_machine_or_program_is_another_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ResultCache(tmp_path).take(Job(()), 0, lambda: 1) == 1
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert ResultCache(tmp_path).take(Job(()), 0, lambda: 2) == 2
    monkeypatch.setattr("imagenet_opt.machine.version", lambda name: "1000")
    assert ResultCache(tmp_path).take(Job(()), 0, lambda: 3) == 3


def test_a_changed_configuration_is_another_measurement(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    assert cache.take(Job(()), 0, lambda: 1, config={"lr": 0.1}) == 1
    assert cache.take(Job(()), 0, lambda: 2, config={"lr": 0.2}) == 2


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_who_stops_and_goes_on_is_told_what_is_kept(
    tmp_path: Path, stop: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    first = ResultCache(tmp_path)
    first.take(Job(("is no turn",)), 0, lambda: 1)
    first.set_subject({"seconds": 8})
    with pytest.raises(stop), first.report_if_stopped():
        raise stop
    assert capsys.readouterr().err == "", "nothing is kept"
    first.take(Job(()), 0, lambda: 1)
    with pytest.raises(stop), first.report_if_stopped():
        first.take(Job(()), 1, lambda: 1)
        raise stop
    assert capsys.readouterr().err == f"stopped; 2 turns are kept in {tmp_path}: run the same command again to resume\n"
    again = ResultCache(tmp_path)
    again.set_subject({"seconds": 8})
    assert (again.report_resumed(), capsys.readouterr().err) == (2, "resuming: 2 turns are kept from before\n")
    again.set_subject({"seconds": 9})
    assert again.report_resumed() == 0
    assert "other --seconds, another configuration or version: all turns are measured again" in capsys.readouterr().err


def test_nothing_is_said_where_nothing_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ResultCache(tmp_path)
    cache.take(Job(("is no turn",)), 0, lambda: 1)
    cache.set_subject({})
    cache.take(Job(()), 0, lambda: 1)
    assert cache.report_resumed() == 0, "this process measured it"
    assert capsys.readouterr().err == ""


def test_only_what_is_measured_is_announced(tmp_path: Path) -> None:
    reported: list[str] = []
    for _ in range(2):
        cache = ResultCache(tmp_path)
        cache.report = reported.append
        for name in ("a", "b"):
            cache.take(Job((name,)), 0, lambda: 1, label=name)
    assert reported == ["a", "b"]
