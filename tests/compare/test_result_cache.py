from pathlib import Path

import pytest

from imagenet_opt.compare.result_cache import FILE, ResultCache


def test_stored_results_are_not_measured_again_even_after_an_incomplete_line(tmp_path: Path) -> None:
    with (first := ResultCache(tmp_path, {})).measuring():
        assert first.take(("a", 0), lambda: "a0", "first a") == "a0"
        assert first.take(("a", 1), lambda: "a1", "second a") == "a1"
    with (tmp_path / FILE).open("a") as file:
        file.write('{"key": "half')
    with (again := ResultCache(tmp_path, {})).measuring():
        assert again.take(("a", 0), pytest.fail, "first a") == "a0"
        assert again.take("b", lambda: "b0", "b") == "b0"
    assert ResultCache(tmp_path, {}).take("b", pytest.fail) == "b0"


def test_another_machine_version_or_subject_is_another_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ResultCache(tmp_path, {"lr": 0.1}).take("a", lambda: 1) == 1
    assert ResultCache(tmp_path, {"lr": 0.2}).take("a", lambda: 2) == 2
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert ResultCache(tmp_path, {"lr": 0.1}).take("a", lambda: 3) == 3
    monkeypatch.setattr("imagenet_opt.machine.version", lambda name: "1000")
    assert ResultCache(tmp_path, {"lr": 0.1}).take("a", lambda: 4) == 4
