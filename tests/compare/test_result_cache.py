from pathlib import Path

import pytest

from imagenet_opt.compare.result_cache import FILE, ResultCache


def test_stored_results_are_not_measured_again_even_after_an_incomplete_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (first := ResultCache(tmp_path, {})).measuring():
        assert first.take(("a", 0), lambda: "a0", "first a") == "a0"
        assert first.take(("a", 1), lambda: "a1", "second a") == "a1"
    with (tmp_path / FILE).open("a") as file:
        file.write('{"key": "half')
    with (again := ResultCache(tmp_path, {})).measuring():
        assert again.take(("a", 0), pytest.fail, "first a") == "a0"
        assert again.take("b", lambda: "b0", "b") == "b0"
    assert ResultCache(tmp_path, {}).take("b", pytest.fail) == "b0"
    shown = [line.removeprefix("measuring: ") for line in capsys.readouterr().err.splitlines()]
    assert shown == ["first a", "second a", "b"], "only new measurements are shown"


def test_another_machine_version_or_subject_is_another_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ResultCache(tmp_path, {"lr": 0.1}).take("a", lambda: 1) == 1
    assert ResultCache(tmp_path, {"lr": 0.2}).take("a", lambda: 2) == 2
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert ResultCache(tmp_path, {"lr": 0.1}).take("a", lambda: 3) == 3
    monkeypatch.setattr("imagenet_opt.machine.version", lambda name: "1000")
    assert ResultCache(tmp_path, {"lr": 0.1}).take("a", lambda: 4) == 4


def test_the_number_of_kept_results_is_printed_at_stop_and_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ResultCache(tmp_path, {"seconds": 8})
    first.take("cold", lambda: False)
    first.report_resumed()
    assert not capsys.readouterr().err, "a new folder, and a fact is no measurement"
    with pytest.raises(KeyboardInterrupt), first.measuring():
        raise KeyboardInterrupt
    assert "no measurement was complete" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt), first.measuring():
        first.take("a", lambda: 1, "a")
        raise KeyboardInterrupt
    assert f"1 measurement is kept in {tmp_path}" in capsys.readouterr().err
    ResultCache(tmp_path, {"seconds": 8}).report_resumed()
    assert "1 measurement is kept" in capsys.readouterr().err
    ResultCache(tmp_path, {"seconds": 9}).report_resumed()
    assert "all are repeated" in capsys.readouterr().err
