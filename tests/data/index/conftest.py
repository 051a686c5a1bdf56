"""A packed data set to copy."""

import shutil
from pathlib import Path

import pytest

from imagenet_opt.pack.image import PackOptions
from imagenet_opt.pack.pack import pack


@pytest.fixture(scope="module")
def packed(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """39 images in five shards or so: train/ of a pack."""
    out = tmp_path_factory.mktemp("packed") / "out"
    pack(images_root, out, PackOptions(shard_mb=0.03))
    return out / "train"


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "out" / "train"))
