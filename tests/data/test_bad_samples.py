"""Bad samples are told once each, and too many of them end the run with the list."""

import logging

import pytest

from imagenet_opt.data.bad_samples import BadSamples
from imagenet_opt.errors import TooManyBadSamples


def skips(*indices: int) -> tuple[tuple[int, str], ...]:
    return tuple((index, f"/data/n{index}.JPEG is empty") for index in indices)


def test_each_is_told_once_and_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    bad = BadSamples(num_samples=100, max_fraction=0.1)
    with caplog.at_level(logging.WARNING):
        for skipped in (skips(), skips(4), skips(7, 4), skips(7)):
            bad.add(skipped, 0)
    assert caplog.messages == ["skipped: /data/n4.JPEG is empty", "skipped: /data/n7.JPEG is empty"]
    assert len(bad.reasons) == 2


def test_as_many_as_allowed_are_no_reason_to_stop() -> None:
    bad = BadSamples(num_samples=300, max_fraction=0.02)
    bad.add(skips(*range(6)), 0)
    with pytest.raises(TooManyBadSamples, match=r"^7 bad .*=0\.02 allows 6 of the 300 .*; and 4 more\.") as caught:
        bad.add(skips(6), 0)
    assert all(f"/data/n{i}.JPEG is empty" in str(caught.value) for i in (0, 1, 2))


def test_of_a_small_data_set_a_few_are_allowed_all_the_same() -> None:
    bad = BadSamples(num_samples=39, max_fraction=0.001)
    bad.add(skips(1, 2, 3), 0)
    with pytest.raises(TooManyBadSamples, match="allows 3 of the 39"):
        bad.add(skips(4), 0)


def test_with_none_allowed_the_first_stops_the_run() -> None:
    bad = BadSamples(num_samples=1_281_167, max_fraction=0.0)
    bad.add((), 0)
    with pytest.raises(TooManyBadSamples, match=r"^1 bad sample, .* allows 0 of .*: /data/n9\.JPEG is empty\. The"):
        bad.add(skips(9), 0)


def test_a_long_list_is_cut_to_one_line() -> None:
    with pytest.raises(TooManyBadSamples, match=r"^1000 bad samples.*$") as caught:
        BadSamples(num_samples=5000, max_fraction=0.1).add(skips(*range(1000)), 0)
    assert str(caught.value).count("is empty") == 3


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_process_is_held_to_the_part_of_the_data_set_that_it_has_met(world_size: int) -> None:
    """Twenty allowed in all; each process meets its share in an epoch, and others in the next one."""
    bad = BadSamples(num_samples=1000, max_fraction=0.02, world_size=world_size)
    bad.add(skips(*range(5)), 0)
    bad.add(skips(*range(20)), 3)
    with pytest.raises(TooManyBadSamples, match="21 bad samples"):
        bad.add(skips(20), 90)
    if world_size > 1:
        with pytest.raises(TooManyBadSamples, match=r"6 bad samples, .* allows 5 of the 250 "):
            BadSamples(num_samples=1000, max_fraction=0.02, world_size=world_size).add(skips(*range(6)), 0)
