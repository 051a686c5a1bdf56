"""Impossible rates, each with the number that disproves the rate."""

import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.stats.physics import Claim, check, impossible


def test_a_batch_that_was_made_before_is_no_rate() -> None:
    """256 images that were taken 0.24 ms apart from the one before, both made long ago."""
    reason = impossible(Claim(num_images=256, seconds=0.00024, num_made=0))
    assert reason == "256 images were counted in 0.00024 s, but only 0 images were prepared in that time"
    assert impossible(Claim(num_images=256, seconds=2.3, num_made=256)) is None
    assert impossible(Claim(num_images=512, seconds=2.3, num_made=256, slack=256)) is None, "one batch of each worker"


def test_workers_make_one_image_at_a_time() -> None:
    """2 workers for 1 s are 2 s of work: 2,000 images of 1 ms."""
    claim = {"seconds": 1.0, "cpus": 2.0, "busy_seconds": 1e-3}
    assert impossible(Claim(num_images=2000, **claim)) is None
    assert "2,600 img/s need 2.6 s of work in 2 s: each image takes 1 ms of one of 2 workers" in str(
        impossible(Claim(num_images=2600, **claim))
    )


def test_a_cpu_does_not_decode_more_than_two_thousand_megapixels_a_second() -> None:
    claim = {"seconds": 1.0, "cpus": 4.0, "megapixels": 0.2}
    assert impossible(Claim(num_images=39_000, **claim)) is None
    assert "4 CPUs cannot decode more than 40,000" in str(impossible(Claim(num_images=41_000, **claim)))


def test_no_more_bytes_come_than_the_storage_gave() -> None:
    claim = {"seconds": 1.0, "mb_per_image": 0.11, "mb_per_second": 12.0}
    assert impossible(Claim(num_images=200, **claim)) is None, "22 MB/s: storages differ from one minute to the next"
    reason = str(impossible(Claim(num_images=300, **claim)))
    assert reason == "300 img/s would be 33 MB/s from the storage, which reached 12 MB/s"
    assert "from memory" in str(impossible(Claim(num_images=1e8, seconds=1.0, mb_per_image=0.11)))


def test_unknown_values_are_not_checked() -> None:
    assert impossible(Claim(num_images=1e9, seconds=1.0)) is None
    assert impossible(Claim(num_images=5, seconds=0.0)) == "5 images in 0 s are not a rate"


def test_an_impossible_rate_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^not measured: 5 images in 0 s are not a rate; raise --budget or"):
        check(Claim(num_images=5, seconds=0.0))
