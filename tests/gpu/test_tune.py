"""Whether a batch fits, asked of a real GPU."""

from pathlib import Path

import pytest

from imagenet_opt.probe.memory import MemoryTrials
from tests.config.configs import tiny


@pytest.mark.slow
def test_out_of_memory_ends_the_trial_only(images_root: Path, tmp_path: Path) -> None:
    """8192 images of 224 pixels take hundreds of GiB in ResNet-50; the next trial finds the device as it was."""
    large = ("model.name=resnet50", "model.num_classes=3", "data.image_size=224", "trainer.accelerator=gpu")
    trials = MemoryTrials(tiny(tmp_path, images_root, *large))
    assert [trials.fits(8), trials.fits(8192), trials.fits(8)] == [True, False, True]
    assert trials.tried[0].peak_gib is not None and trials.tried[0].peak_gib < 8
