"""Small sources of images, and what a pack of them holds."""

import shutil
from pathlib import Path

import pytest

from imagenet_opt.pack.pack import pack
from tests.pack.packs import SMALL


@pytest.fixture(scope="module")
def whole(images_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    pack(images_root, out, SMALL)
    return out


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "out"))
