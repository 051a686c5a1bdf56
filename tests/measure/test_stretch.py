from imagenet_opt.measure.interval import interval, series
from imagenet_opt.measure.statistics import median_interval
from imagenet_opt.measure.stretch import seconds_per_call


def test_what_is_slower_than_the_stretch_is_still_done_three_times() -> None:
    calls: list[str] = []
    seconds = seconds_per_call(lambda: calls.append("call"), seconds=1e-9, settle=lambda: calls.append("settle"))
    assert calls == ["settle", "call", "settle", "settle", "call", "call", "call", "settle"]
    assert seconds > 0


def test_intervals_in_cells_and_plots() -> None:
    some = median_interval([1.0, 2.0, 4.0])
    assert interval(some, "{:.1f}") == "1.0-4.0"
    assert interval(median_interval([1.0]), "{:.1f}") is None
    curve = series("one", {8.0: some})
    assert (curve.x, curve.y, curve.low, curve.high) == ((8.0,), (2.0,), (1.0,), (4.0,))
