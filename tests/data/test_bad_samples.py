"""Too many bad samples end the run with their names."""

import pytest

from imagenet_opt.data.bad_samples import BadSamples
from imagenet_opt.errors import TooManyBadSamples


def skips(*indices: int) -> tuple[tuple[int, str], ...]:
    return tuple((index, f"/data/n{index}.JPEG is empty") for index in indices)


@pytest.mark.parametrize(
    ("num_samples", "max_fraction", "num_allowed", "num_bad", "words"),
    [
        (300, 0.02, 6, 7, r"^7 bad samples, .*=0\.02 allows 6 of the 300 .*; and 4 more\."),
        (1_281_167, 0.0, 0, 1, r"^1 bad sample, .* allows 0 of .*: /data/n0\.JPEG is empty\. The"),
    ],
)
def test_more_bad_samples_than_allowed_end_the_run(
    num_samples: int, max_fraction: float, num_allowed: int, num_bad: int, words: str
) -> None:
    bad = BadSamples(num_samples=num_samples, max_fraction=max_fraction)
    bad.add(skips(*range(num_allowed)), 0)
    with pytest.raises(TooManyBadSamples, match=words) as caught:
        bad.add(skips(*range(num_allowed, num_bad)), 0)
    names = [f"/data/n{i}.JPEG is empty" for i in range(min(3, num_bad))]
    assert all(name in str(caught.value) for name in names) and str(caught.value).count("is empty") == len(names)


@pytest.mark.parametrize("world_size", [1, 4])
def test_the_limit_grows_with_the_part_that_a_process_has_read(world_size: int) -> None:
    """Twenty bad samples are allowed in all; a process reads another share of the data set in each epoch."""
    bad = BadSamples(num_samples=1000, max_fraction=0.02, world_size=world_size)
    bad.add(skips(*range(5)), 0)
    bad.add(skips(*range(20)), 3)
    with pytest.raises(TooManyBadSamples, match="21 bad samples"):
        bad.add(skips(20), 90)
    if world_size > 1:
        with pytest.raises(TooManyBadSamples, match=r"6 bad samples, .* allows 5 of the 250 "):
            BadSamples(num_samples=1000, max_fraction=0.02, world_size=world_size).add(skips(*range(6)), 0)
