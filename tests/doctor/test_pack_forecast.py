"""A forecast compared with the pack."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagenet_opt.data.index.shard_index import load_index
from imagenet_opt.doctor.pack_forecast import forecast
from imagenet_opt.pack.image import PackOptions, preset_for
from imagenet_opt.pack.pack import pack
from imagenet_opt.probe.testbed import Testbed
from tests.conftest import composed


@pytest.mark.slow
def test_bytes_are_those_of_the_pack(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for split, num in (("train", 64), ("val", 2)):
        (tmp_path / "data" / split / "a").mkdir(parents=True)
        for i in range(num):
            noise = Image.fromarray(rng.integers(0, 256, (60, 80, 3), np.uint8)).resize((400, 300))
            noise.save(tmp_path / "data" / split / "a" / f"{i}.jpg", quality=95)
    options = PackOptions(max_side=100)
    testbed = Testbed(composed(f"data.root={tmp_path}/data", f"data.cache_dir={tmp_path}/cache", "data.batch_size=8"))
    testbed.samples.read_into_memory(np.arange(64), least=64, seconds=0)
    actual = forecast(testbed, "max_side=100", options)
    assert actual is not None and actual.option == "max_side=100"
    pack(tmp_path / "data", tmp_path / "out", options)
    packed = load_index(tmp_path / "out/train")
    originals = [file.stat().st_size for file in (tmp_path / "data/train/a").iterdir()]
    assert actual.bytes_ratio == pytest.approx(packed.sizes.sum() / sum(originals), rel=0.05)


def test_the_preset_is_the_next_larger_width() -> None:
    assert [preset_for(size) for size in (96, 176, 192, 224, 384)] == [176, 176, 224, 224, 224]
