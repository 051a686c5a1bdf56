import pytest

from imagenet_opt.measure.stats.rate import NUM_WINDOWS, has_few_pauses, rate_windows


@pytest.mark.parametrize(
    ("stamps", "multiple", "windows"),
    [
        ([*(0.5 * i for i in range(7)), *(4.0 + i for i in range(6))], 1, (16.0, 16.0, 16.0, 8.0, 8.0, 8.0)),
        ([0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0], 2, (16.0, 16.0, 16.0)),  # two workers deliver together
        ([0.0, 1.0, 2.0, 3.0], 1, (8.0, 8.0, 8.0)),  # few batches give fewer windows
    ],
)
def test_windows_have_equal_numbers_of_batches(stamps: list[float], multiple: int, windows: tuple[float, ...]) -> None:
    assert rate_windows(stamps, [8] * len(stamps), multiple=multiple) == windows
    assert len(windows) <= NUM_WINDOWS


def test_the_first_batch_starts_the_measurement_and_does_not_count() -> None:
    assert rate_windows([10.0, 12.0], [1000, 6]) == (3.0,)
    with pytest.raises(ValueError, match="no rate"):
        rate_windows([0.0], [4])


@pytest.mark.parametrize(("num_late", "few"), [(0, False), (1, True), (3, True), (4, False)])
def test_pauses_count_once_there_are_several(num_late: int, few: bool) -> None:
    gaps = [0.1] * 20 + [1.0] * num_late
    assert has_few_pauses([sum(gaps[:i]) for i in range(len(gaps) + 1)]) is few
