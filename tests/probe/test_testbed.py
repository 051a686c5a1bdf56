"""A testbed says how its measurements differ from a real run."""

from pathlib import Path

import pytest

from imagenet_opt.probe.testbed import Testbed
from tests.config.configs import composed
from tests.study.studies import TINY

SMALL = (*TINY, "data.num_train=100", "data.num_val=20", "data.num_workers=0")


def test_the_largest_size_of_a_growing_run_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    growing = ("callbacks.resolution_schedule.start=32", "callbacks.resolution_schedule.end=160")
    config = composed(tmp_path, *SMALL, *growing, "data.image_size=160")
    testbeds = [Testbed(config), Testbed(config)]
    assert [testbed.loading.image_size for testbed in testbeds] == [160, 160]
    assert "resolution_schedule" not in testbeds[0].config.callbacks
    assert "resolution_schedule" in config.callbacks, "the user's configuration stays as it was"
    assert capsys.readouterr().err.count("images grow to 160 pixels (callbacks.resolution_schedule)") == 1
