import numpy as np
import pytest
from scipy.stats import wilcoxon

from imagenet_opt.measure.stats.signed_ranks import signed_rank_interval


@pytest.mark.parametrize(("num", "error"), [(12, 0.05), (20, 0.002), (25, 0.01)])
def test_the_interval_has_the_middles_that_scipys_exact_test_does_not_reject(num: int, error: float) -> None:
    numbers = np.random.default_rng(num).standard_t(3, num)
    interval = signed_rank_interval(numbers.tolist(), error)
    assert interval is not None
    middle, low, high = interval
    for end, outwards in ((low, -1e-9), (high, 1e-9)):
        inside, outside = (wilcoxon(numbers - end - sign * outwards, method="exact").pvalue for sign in (-1, 1))
        assert outside <= error < inside
    assert wilcoxon(numbers - middle, method="exact").pvalue > 0.9


def test_an_end_does_not_depend_on_an_outlier_and_too_few_numbers_have_no_interval() -> None:
    numbers = np.random.default_rng(0).normal(0, 1, 12).tolist()
    _, low, high = signed_rank_interval([-1000.0, *numbers[1:]], 0.05) or (0.0, 0.0, 0.0)
    assert min(numbers[1:]) < low < high < max(numbers[1:])
    assert signed_rank_interval(numbers[:11], 0.05) is None
    assert signed_rank_interval(numbers, 0.02) is None
