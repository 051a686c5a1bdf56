"""data.batch_size=auto, from a configuration to a run."""

import logging
from pathlib import Path

import pytest

from imagenet_opt.errors import ConfigError
from imagenet_opt.training.build_run import build_run
from tests.config.configs import fitted, tiny


@pytest.mark.slow
def test_auto_finds_and_logs_the_largest_batch(
    images_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = tiny(tmp_path, images_root, "data.batch_size=auto")
    run = build_run(config)
    assert run.data.loading.batch_size == config.data.batch_size == 8, "a quarter of 39 images, in eights"
    assert any("8 images fit at 32 px" in line and "lr 0.00313" in line for line in caplog.messages)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch")
def test_a_resumed_run_keeps_its_batch(images_root: Path, tmp_path: Path) -> None:
    fitted(tiny(tmp_path, images_root, "data.batch_size=6", "trainer.max_steps=2"))
    run = fitted(tiny(tmp_path, images_root, "data.batch_size=auto", "trainer.max_steps=3"))
    assert run.data.loading.batch_size == 6, "a search would find 8"
    assert run.trainer.global_step == 3


@pytest.mark.parametrize(
    ("override", "key"), [("trainer.devices=2", "trainer.devices"), ("rehearse=a10g", "rehearse=")]
)
def test_auto_is_refused_without_one_real_device(override: str, key: str, images_root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        build_run(tiny(tmp_path, images_root, "data.batch_size=auto", override))
