"""Files encoded again, for all loaders of a benchmark."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagenet_opt.bench.files import encoded_again, write_once
from imagenet_opt.data.index.folder_index import FileIndex, open_split
from imagenet_opt.data.index.shard_index import open_shards
from imagenet_opt.errors import ConfigError
from imagenet_opt.pack.pack import pack
from imagenet_opt.pack.plan import PackOptions
from tests.bench.conftest import plan_of


def fat_images(root: Path) -> FileIndex:
    """Two classes of JPEGs of quality 100, and a file that is none."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 40, 50, 3), np.uint8)
    for label, name in enumerate("ab"):
        (root / "train" / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(pixels[label, i]).save(root / "train" / name / f"{i}.jpg", quality=100)
    (root / "train/b/2.jpg").write_bytes(b"no image")
    return open_split(root, "train", root / "cache")


def test_every_image_is_one_of_quality_90_in_its_class(tmp_path: Path) -> None:
    index = fat_images(tmp_path / "data")
    again = encoded_again(index, tmp_path / "bench")
    assert again.classes == index.classes and again.labels.tolist() == [0, 0, 0, 1, 1]
    expected = io.BytesIO()
    Image.open(index.path(0)).save(expected, "JPEG", quality=90)
    assert Path(again.path(0)).read_bytes() == expected.getvalue()
    written = Path(again.path(0)).stat().st_mtime_ns
    kept = encoded_again(index, tmp_path / "bench").path(0)
    assert Path(kept).stat().st_mtime_ns == written


def test_files_of_a_faster_process_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "converted"

    def write(new: Path) -> None:
        (new / "ours").touch()
        folder.mkdir()
        (folder / "theirs").touch()

    write_once(folder, write)
    assert [file.name for file in folder.iterdir()] == ["theirs"] and list(tmp_path.iterdir()) == [folder]


def test_all_rows_read_them(tmp_path: Path) -> None:
    plan = plan_of(fat_images(tmp_path / "data"), cache=tmp_path, same_bytes=True)
    assert plan.job.num_files == 5 and Path(plan.job.index.path(0)).is_relative_to(tmp_path / "bench")


def test_packed_data_is_refused(images_root: Path, tmp_path: Path) -> None:
    pack(images_root, tmp_path / "out", PackOptions())
    with pytest.raises(ConfigError, match="--same-bytes needs a folder of image files"):
        plan_of(open_shards(tmp_path / "out/train"), same_bytes=True)
