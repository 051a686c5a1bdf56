import pytest

from imagenet_opt.measure.stretch import seconds_per_call


def test_what_is_slower_than_the_stretch_is_still_done_three_times() -> None:
    calls: list[str] = []
    seconds = seconds_per_call(lambda: calls.append("call"), seconds=1e-9, settle=lambda: calls.append("settle"))
    assert calls == ["call", "settle", "call", "settle", "settle", "call", "call", "call", "settle"]
    assert seconds > 0


def test_a_slow_first_call_does_not_say_how_many_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 100 s, each of the others 2, of which 20 s hold ten."""
    clock, taken = [0.0], iter([100.0, *[2.0] * 11])
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def call() -> None:
        clock[0] += next(taken)

    assert seconds_per_call(call, seconds=20) == 2.0
    assert next(taken, None) is None
