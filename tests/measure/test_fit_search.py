from functools import partial
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagenet_opt.measure.fit_search import even_parts, largest_that_fits, whole

SIZES = [1, 2, 4, *range(8, 5000, 8)]


@settings(deadline=None)
@given(
    threshold=st.integers(0, 4096),
    start=st.integers(1, 2000),
    most=st.integers(1, 4096),
    stride=st.none() | st.integers(1, 200),
)
def test_the_largest_that_fits_is_found_in_few_trials(
    threshold: int, start: int, most: int, stride: int | None
) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= threshold

    found = largest_that_fits(fits, start=start, most=most, stride=stride)
    assert found == max((size for size in SIZES if size <= min(threshold, most)), default=0)
    assert len(set(tried)) == len(tried) and max(tried) <= most
    assert len(tried) <= 4 + 2 * log2(max(most, 8))


def test_what_is_likely_to_fit_takes_few_trials() -> None:
    tried: list[int] = []
    assert largest_that_fits(lambda size: tried.append(size) or size <= 700, start=256, most=1024) == 696
    assert tried[:3] == [256, 512, 1024] and len(tried) == 9


@pytest.mark.parametrize("capacity", [390, 450, 472, 500, 1024])
def test_a_good_guess_takes_fewer_trials(capacity: int) -> None:
    from_guess: list[int] = []
    from_256: list[int] = []
    guess = min(capacity + 20, 1024)
    for tried, start, stride in ((from_guess, guess, guess // 16), (from_256, 256, None)):
        fits = partial(_fits, tried, capacity)
        assert largest_that_fits(fits, start=start, most=1024, stride=stride) == whole(capacity)
    assert from_guess[0] == whole(guess) and len(from_guess) < len(from_256)


def _fits(tried: list[int], capacity: int, size: int) -> bool:
    tried.append(size)
    return size <= capacity


@given(num=st.integers(1, 4096), most=st.integers(1, 4096))
def test_parts_are_few_and_alike(num: int, most: int) -> None:
    most = whole(most)
    size = even_parts(num, most)
    assert 1 <= size <= most
    assert -(-num // size) == -(-num // most), "no more parts than are needed"


@pytest.mark.parametrize(("num", "most", "size"), [(384, 200, 192), (384, 376, 192), (50, 48, 32), (10, 4, 4)])
def test_a_batch_that_does_not_fit_is_cut_evenly(num: int, most: int, size: int) -> None:
    assert even_parts(num, most) == size
