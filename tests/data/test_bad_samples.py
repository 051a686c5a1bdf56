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
            bad.add(skipped)
    assert caplog.messages == ["skipped: /data/n4.JPEG is empty", "skipped: /data/n7.JPEG is empty"]
    assert len(bad.reasons) == 2


def test_as_many_as_allowed_are_no_reason_to_stop() -> None:
    bad = BadSamples(num_samples=100, max_fraction=0.02)
    bad.add(skips(1, 2))
    with pytest.raises(TooManyBadSamples, match=r"3 bad samples .*data\.max_bad_fraction=0\.02 ") as caught:
        bad.add(skips(3))
    assert all(f"/data/n{i}.JPEG is empty" in str(caught.value) for i in (1, 2, 3))


def test_with_none_allowed_the_first_stops_the_run() -> None:
    bad = BadSamples(num_samples=1_281_167, max_fraction=0.0)
    bad.add(())
    with pytest.raises(TooManyBadSamples, match="/data/n9"):
        bad.add(skips(9))


def test_a_long_list_is_cut() -> None:
    with pytest.raises(TooManyBadSamples, match="1000 bad samples") as caught:
        BadSamples(num_samples=5000, max_fraction=0.1).add(skips(*range(1000)))
    assert str(caught.value).count("is empty") == 20
