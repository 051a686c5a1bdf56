"""All files are read as asked, from storage."""

from pathlib import Path
from typing import Any

import pytest

from imagenet_opt.cli.study import tables_of
from imagenet_opt.config.compose import composed
from imagenet_opt.errors import ConfigError
from imagenet_opt.measure.storage.page_cache import evict, residency
from imagenet_opt.probe.testbed import Testbed
from imagenet_opt.study.read_speed import Way, read, turn
from tests.conftest import write_images
from tests.study.studies import small_request

ONE: dict[str, Any] = {"num_workers": [1], "reads_in_flight": [4], "batch_size": [45], "repeats": 1, "seconds": 0.01}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("read"), num_classes=3, per_class=30)


@pytest.fixture
def overrides(root: Path) -> tuple[str, ...]:
    return (f"data.root={root}", f"data.cache_dir={root}/cache")


@pytest.fixture
def testbed(overrides: tuple[str, ...]) -> Testbed:
    return Testbed(composed(overrides))


def test_every_setting_of_the_grid_has_a_row(root: Path, overrides: tuple[str, ...], tmp_path: Path) -> None:
    images = [str(path) for path in (root / "train").rglob("*.*") if path.is_file()]
    for path in images:
        evict(path, write_out=True)
    evictable = all(residency(path).share == 0 for path in images)  # not on memory file systems
    (table,) = tables_of(small_request("read", tmp_path, *overrides, **ONE | {"reads_in_flight": [1, 4]}))
    assert [row[:3] for row in table.rows] == [("1", depth, "45") for depth in "14"]
    assert all(float(row[3] or 0) > 0 for row in table.rows)
    assert [row[5] for row in table.rows] == [None, "workers 1, in flight 1, batch 45"]
    assert {row[-1] for row in table.rows} == {"yes" if evictable else "no"}
    assert "90 images" in table.title


def test_all_bytes_of_a_pass_are_read_once(testbed: Testbed) -> None:
    rows = testbed.samples.rows[:48]
    read_pass = read(testbed.samples, rows, Way(2, 4, 8))
    num_bytes = sum(Path(testbed.samples.index.path(row)).stat().st_size for row in rows.tolist())
    assert (read_pass.num_files, read_pass.num_bytes) == (48, num_bytes)


def test_a_turn_needs_a_batch_for_each_worker(testbed: Testbed) -> None:
    with pytest.raises(ConfigError, match=r"study\.batch_size"):
        turn(testbed.samples, Way(1, 1, 256), 0.1)
    assert turn(testbed.samples, Way(1, 1, 90), 60.0).num_files == 90, "all there are"
