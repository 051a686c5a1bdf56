"""Files encoded again, for all loaders of a benchmark."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagenet_opt.bench.files import encoded_again, write_once
from imagenet_opt.data.index.folder_index import FileIndex, open_split
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
    job = plan_of(index, cache=tmp_path, same_bytes=True).job
    assert job.num_files == 5 and job.index.path(0) == again.path(0), "all rows read them"
    assert Path(job.index.path(0)).stat().st_mtime_ns == written


def test_files_of_a_faster_process_are_kept_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "converted"
    with pytest.raises(OSError, match="No space left"):
        write_once(folder, lambda new: Path("/dev/full").write_bytes(b"0"))
    assert list(tmp_path.iterdir()) == []

    def write(new: Path) -> None:
        (new / "ours").touch()
        folder.mkdir()
        (folder / "theirs").touch()

    write_once(folder, write)
    assert [file.name for file in folder.iterdir()] == ["theirs"] and list(tmp_path.iterdir()) == [folder]
