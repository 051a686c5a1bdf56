"""The demo images: layout, determinism, and colours that do not tell the class."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagenet_opt.config.build import check_types
from imagenet_opt.data.datamodule import demo_data
from imagenet_opt.data.demo import DEMO_CLASSES, demo_folder
from imagenet_opt.errors import ConfigError


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(image.relative_to(folder)): image.read_bytes() for image in sorted(folder.rglob("*.jpg"))}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_folder(tmp_path_factory.mktemp("cache") / "new", 40, 23)


def test_classes_are_balanced_folders_of_jpegs_of_many_sizes(demo: Path) -> None:
    counts = Counter(image.parent.relative_to(demo).as_posix() for image in demo.rglob("*.jpg"))
    more = {f"val/{name}": 3 for name in DEMO_CLASSES[:3]}
    assert counts == {f"{split}/{name}": n for split, n in (("train", 4), ("val", 2)) for name in DEMO_CLASSES} | more
    with ExitStack() as files:
        images = [files.enter_context(Image.open(path)) for path in demo.rglob("*.jpg")]
    assert {(image.format, image.mode) for image in images} <= {("JPEG", "RGB"), ("JPEG", "L")}
    widths, heights = np.array([image.size for image in images]).T
    assert len({image.size for image in images}) > 50 and np.minimum(widths, heights).min() >= 72
    assert (widths / heights).min() < 3 / 4 and (widths / heights).max() > 4 / 3


def test_a_smaller_set_is_the_beginning_of_a_larger_one_and_is_drawn_once(demo: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as threads:
        (folder,) = set(threads.map(lambda _: demo_folder(tmp_path, 20, 10), range(3)))
    small, before = files_of(folder), folder.stat().st_mtime_ns
    assert len(small) == 30 and small.items() <= files_of(demo).items()
    assert demo_folder(tmp_path, 20, 10) == folder and folder.stat().st_mtime_ns == before
    assert list(tmp_path.iterdir()) == [folder]


def test_an_unwritable_folder_and_too_few_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(ConfigError, match=r"data\.cache_dir"):
        demo_folder(tmp_path / "file/cache", 10, 10)
    with pytest.raises(ConfigError, match=r"data\.num_val=9 must be .* 10"):
        check_types(demo_data, {"num_val": 9}, "data.")
