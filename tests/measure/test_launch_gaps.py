"""Whether a CUDA graph can matter is known before anyone tries it."""

import pytest

from imagenet_opt.measure.launch_gaps import LaunchGaps


def test_gaps_bound_what_can_be_gained() -> None:
    gaps = LaunchGaps(step_seconds=0.020, kernel_seconds=0.016)
    assert gaps.gap_seconds == pytest.approx(0.004)
    assert gaps.gap_share == pytest.approx(0.2)
    assert gaps.most_gain == pytest.approx(1.25)
    sentence = gaps.sentence()
    assert "20.0 % of a step (4.0 of 20.0 ms)" in sentence and "1.25 x at most" in sentence
    assert "callbacks.acceleration.cuda_graph=true" in sentence


@pytest.mark.parametrize(("kernel_seconds", "can_matter"), [(0.98, False), (0.96, True)])
def test_below_three_percent_it_cannot_matter(kernel_seconds: float, can_matter: bool) -> None:
    gaps = LaunchGaps(step_seconds=1.0, kernel_seconds=kernel_seconds)
    assert gaps.can_matter is can_matter
    assert ("cannot matter" in gaps.sentence()) is not can_matter


def test_kernels_side_by_side_are_no_negative_gap() -> None:
    gaps = LaunchGaps(step_seconds=1.0, kernel_seconds=1.1)
    assert (gaps.gap_seconds, gaps.gap_share, gaps.most_gain, gaps.can_matter) == (0.0, 0.0, 1.0, False)


@pytest.mark.parametrize("seconds", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_what_was_not_measured_is_refused(seconds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        LaunchGaps(*seconds)
