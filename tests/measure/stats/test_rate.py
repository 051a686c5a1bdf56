import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_opt.measure.stats.rate import NUM_WINDOWS, has_few_pauses, rate_windows


def test_windows_are_of_equally_many_batches() -> None:
    stamps = [0.5 * i for i in range(7)] + [4.0 + i for i in range(6)]
    assert rate_windows(stamps, [8] * 13) == (16.0, 16.0, 16.0, 8.0, 8.0, 8.0)


def test_the_first_batch_begins_and_does_not_count() -> None:
    assert rate_windows([10.0, 12.0], [1000, 6]) == (3.0,)


def test_batches_of_workers_that_come_together_stay_together() -> None:
    stamps = [0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert rate_windows(stamps, [4] * 7, multiple=2) == (8.0, 8.0, 8.0)


def test_few_batches_give_fewer_windows() -> None:
    assert len(rate_windows([0.0, 1.0, 2.0, 3.0], [1] * 4)) == 3 < NUM_WINDOWS


def test_one_batch_has_no_rate() -> None:
    with pytest.raises(ValueError, match="no rate"):
        rate_windows([0.0], [4])


@given(st.lists(st.floats(0.01, 5), min_size=12, max_size=60), st.integers(1, 4))
def test_all_windows_together_are_images_over_seconds(gaps: list[float], multiple: int) -> None:
    stamps = [sum(gaps[:i]) for i in range(len(gaps) + 1)]
    windows = rate_windows(stamps, [5] * len(stamps), multiple=multiple)
    size = len(gaps) // multiple // len(windows) * multiple
    seconds = sum(5 * size / rate for rate in windows)
    assert seconds == pytest.approx(stamps[-1] - stamps[-1 - size * len(windows)])


@pytest.mark.parametrize(("num_late", "few"), [(0, False), (1, True), (3, True), (4, False)])
def test_pauses_count_once_there_are_several(num_late: int, few: bool) -> None:
    gaps = [0.1] * 20 + [1.0] * num_late
    assert has_few_pauses([sum(gaps[:i]) for i in range(len(gaps) + 1)]) is few
