"""Accelerators: what a step takes, profiles that Hydra composes, and schedules computed by hand, on a clock that only
sleeping and the test move."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from imagenet_opt.callbacks.rehearsal import Rehearsal
from imagenet_opt.config.build import make
from imagenet_opt.config.overrides import config_folder
from imagenet_opt.doctor.gpu_profile import write_profile
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.rehearsal import Accelerator, DeviceTimeline
from tests.conftest import composed

PROFILES = sorted((config_folder() / "rehearse").glob("*.yaml"))


def accelerator(**options: Any) -> Accelerator:
    usual = {"images_per_second": 1000.0, "launch_seconds": 0.03, "copy_gb_per_second": 20.0}
    return Accelerator(**({"name": "x"} | usual | options))


def test_a_step_follows_from_the_batch_and_the_area_of_its_images() -> None:
    one = accelerator()
    assert one.step_seconds(500, 224) == pytest.approx(0.5)
    assert one.step_seconds(500, 112) == pytest.approx(0.125)
    assert one.step_seconds(300, 224, training=False) == pytest.approx(0.1)
    assert one.copy_seconds(10**9) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("key", "value"), [("images_per_second", 0), ("launch_seconds", -1), ("copy_gb_per_second", float("nan"))]
)
def test_impossible_numbers_are_refused_by_their_key(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"callbacks.rehearsal.{key}={value}"):
        accelerator(**{key: value})


def test_the_profiles_of_conf_make_rehearsals() -> None:
    for file in PROFILES:
        options = {**OmegaConf.load(file).callbacks.rehearsal}
        made = Rehearsal(**options)
        assert made.simulated == f"simulated {file.stem}" and made.accelerator.source
        assert made.accelerator.estimate, "no profile has measured numbers only"
    config = composed("data=folder", "experiment=aggressive", "rehearse=a10g", "model.num_classes=3")
    assert config.data.resize_on == "device"
    assert (config.trainer.accelerator, config.trainer.precision) == ("cpu", "32-true")
    assert not config.callbacks.acceleration.compile and not config.callbacks.acceleration.channels_last
    former = OmegaConf.create({**config.callbacks.rehearsal, "jitter": 0.1})
    with pytest.raises(ConfigError, match=r"callbacks\.rehearsal\.jitter"):
        make(former, "callbacks.rehearsal")


def test_a_written_profile_is_composed_as_it_was(tmp_path: Path) -> None:
    speeds = {"images_per_second": 1234.5, "launch_seconds": 1e-7}
    written = accelerator(name='my "A10G"', source="x: # y", estimate=False, **speeds)
    (tmp_path / "rehearse").mkdir()
    write_profile(tmp_path / "rehearse/mine.yaml", written, machine="host\nwith 8 CPUs")
    text = (tmp_path / "rehearse/mine.yaml").read_text()
    assert "# Measured on host\\nwith 8 CPUs, 20" in text
    assert yaml.safe_load(text)["defaults"] == ["/rehearsed"]
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        config = compose("train", [f"hydra.searchpath=[file://{tmp_path}]", "rehearse=mine"])
    rehearsal: Rehearsal = make(OmegaConf.create(config).callbacks.rehearsal, "callbacks.rehearsal")
    assert rehearsal.accelerator == written


class Clock(DeviceTimeline):
    """A timeline on its own clock, `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_steps_follow_each_other_and_wait_for_their_copies() -> None:
    timeline = Clock()
    assert timeline.submit(1.0, 0.5) == 0.0  # from 0.5 to 1.5
    assert timeline.submit(1.0, 0.5) == 0.0  # to 2.5; copied while the first computes
    assert timeline.submit(1.0, 3.0) == 2.0  # the copy engine is free at 1.5, when the host is, and done at 4.5
    timeline.now = 7.0
    assert timeline.submit(1.0) == 1.5
    assert (timeline.busy_seconds, timeline.idle_seconds) == (3.0, 3.5)
    assert timeline.utilization == pytest.approx(3 / (8.0 - 1.5))


def test_idleness_does_not_count_during_a_pause() -> None:
    timeline = Clock()
    timeline.submit(1.0)
    timeline.submit(1.0)
    timeline.now = 2.5
    timeline.pause()  # idle for 0.5
    timeline.now = 50.0
    timeline.resume()
    timeline.now = 51.5
    timeline.submit(1.0)  # and for 1.5
    assert (timeline.busy_seconds, timeline.idle_seconds) == (2.0, 2.0)
